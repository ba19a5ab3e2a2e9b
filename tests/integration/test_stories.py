"""The output of examples, with their jobs in the shared session; tests/system/test_examples.py starts one for
real.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from stories import EXAMPLES, Stories, cells

from penstock.machine.local_server import free_port


@pytest.fixture
def stories(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Stories:
    return Stories(spark, monkeypatch, capsys)


def test_rules_change_while_payments_come(stories: Stories) -> None:
    """The right rules alert in each hour, in the right version, and each command has the expected receipt."""
    out = stories.told("dynamic_rules")
    forms = {
        "card-testing": ["-", r"\d+ v1", r"\d+ v1", "-"],
        "foreign-cards": [r"\d+ v1", r"\d+ v1", "-", r"\d+ v1"],
        "spree": [r"\d+ v1", r"\d+ v2", r"\d+ v2", r"\d+ v2"],
    }
    for rule, wanted in forms.items():
        found = cells(out, rule)[1:]
        assert all(re.fullmatch(form, cell) for form, cell in zip(wanted, found, strict=True)), (rule, found)
    statuses = {
        "add-rule-1": "APPLIED",
        "update-rule-1": "APPLIED",
        "pause-rule-1": "APPLIED",
        "add-rule-2": "DEGRADED",
        "update-rule-2": "REJECTED",
        "resume-rule-1": "APPLIED",
        "clear-rule-1": "APPLIED",
        "list-rules-1": "APPLIED",
    }
    assert {name: cells(out, name)[1] for name in statuses} == statuses
    assert cells(out, "clear-rule-1")[2] == "60"
    assert "control 2 ┃ control 4 ┃ control 5 ┃ control 9" in out
    listed = out.partition("replies to list-rules:")[2].split("One job")[0].split("\n")
    assert [line.split(":")[0].strip() for line in listed if line.strip()] == ["spree v2", "foreign-cards v1"]


@pytest.mark.chaos  # tests/unit/examples/test_feature_flags.py has the job without Spark
def test_flags_hold_from_the_time_they_say(stories: Stories) -> None:
    """Views are unordered, yet the hours are kept apart: 10 %, 50 % from noon, all from 16:00; killed, and
    back.
    """
    out = stories.told("feature_flags")
    for hour in range(8, 20):
        found = [re.fullmatch(r"█* *(\d+)% v(\d)", cell) for cell in cells(out, f"{hour:02}:00")[1:]]
        assert all(found)
        shares, versions = zip(*((int(one[1]), one[2]) for one in found if one), strict=True)
        assert 3 <= shares[0] <= 20
        low, high = (3, 20) if hour < 12 else (40, 60) if hour < 16 else (100, 100)
        assert low <= shares[1] <= high
        assert shares[2] == (0 if 10 <= hour < 14 else 100)
        second = "2" if hour < 12 else "3" if hour < 16 else "4"
        third = "4" if hour < 10 else "5" if hour < 14 else "6"
        assert versions == ("2", second, third)
    assert cells(out, "kill-1")[3] == cells(out, "kill-2")[3] == "APPLIED"
    assert "lost the new checkout while its share grew: 0." in out


@pytest.mark.chaos
@pytest.mark.parametrize("form", ["--plain", "with RabbitMQ and S3"])
def test_what_is_usual_is_learned_dumped_and_carried_over(
    stories: Stories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Each broken playback is found, also by a job with other key groups that starts from a validated dump.

    tests/unit/examples/test_video_quality.py has the job without Spark.
    """
    if form != "--plain" and not stories.beside("video_quality", "services").are_installed():
        pytest.skip("There is no RabbitMQ, or no S3 server")
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ALLOW_HTTP",
    ):
        # Settings of the example are removed with the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    out = stories.told("video_quality", "--to", str(tmp_path), *(["--plain"] if form == "--plain" else []))
    assert ("Dumped to s3://models/quality/day-2" in out) == (form != "--plain")
    assert "23 playbacks of a broken transcoder, 23 of them found; 0 others" in out
    assert "14 playbacks of a broken transcoder, 14 of them found; 0 others" in out
    assert "6 cells ran, all checks passed" in out
    assert (tmp_path / "moved.svg").exists()
    assert [cell.split()[-1] for cell in cells(out, "salt")[1:]] == ["0", "23", "0"]


@pytest.mark.chaos
def test_versions_of_a_model_come_and_go_while_payments_are_scored(stories: Stories) -> None:
    """Each day is scored by the planned version; the better one finds more fraud, and the bad one is rolled
    back.
    """
    out = stories.told("fraud_scoring")
    assert [cells(out, str(day))[1] for day in range(1, 7)] == ["1", "1", "1 2", "2", "3", "2"]
    found = [int(re.sub(r"\D", "", cells(out, str(day))[3])) for day in range(1, 7)]
    false = [int(re.sub(r"\D", "", cells(out, str(day))[4])) for day in range(1, 7)]
    assert max(found[0], found[1]) < 70 < 90 < min(found[3], found[5])
    assert false[4] > 10 * max(false[3], false[5], 10)
    assert cells(out, "validate-4")[1] == "REJECTED"
    (by_policy,) = re.findall(r"policy-\w+", out)
    assert cells(out, by_policy)[1:] == ["APPLIED", "2 is SERVING, 3 is RETIRED"]


def test_words_of_a_folder_are_counted_in_windows(stories: Stories, tmp_path: Path) -> None:
    """Each word is in the five windows open at its time, and the end of the text ends them."""
    feed = stories.beside("wordcount", "feed")
    feed.write(tmp_path / "text", files=2, count=20)
    places = {"lines": f"text:{tmp_path / 'text'}", "counts": f"jsonl:{tmp_path / 'counts'}"}
    summary = stories.running_job.run_bounded(EXAMPLES / "wordcount" / "windowed_job.py", places)
    assert summary["records_in"] == {"lines": 40}
    texts = [path.read_text() for path in (tmp_path / "text").iterdir()]
    wanted = Counter(re.findall(r"\w+", " ".join(texts).lower()))
    found: Counter[str] = Counter()
    for path in (tmp_path / "counts").glob("*.jsonl"):
        for line in path.open():
            found[json.loads(line)["word"]] += json.loads(line)["count"]
    assert found == Counter({word: 5 * count for word, count in wanted.items()})


@pytest.mark.chaos  # tests/unit/examples/test_car_events.py has the job without Spark
def test_top_speeds_are_those_of_the_reference(stories: Stories) -> None:
    """The output has the top n speeds of each car, and the first ones."""
    out = stories.told("car_events")
    told = stories.beside("car_events", "car_reference").top_speeds(
        stories.beside("car_events", "feed").reports(3, 240)
    )
    speeds: dict[int, list[int]] = {}
    for one in told:
        speeds.setdefault(one["car"], []).append(one["speed"])
    for car, wanted in speeds.items():
        table = out.partition(f"Car {car}: {len(wanted)} top speeds")[2].partition("└")[0]
        assert [int(speed) for speed in re.findall(r"^│ (\d+)", table, re.MULTILINE)] == wanted[:8]


@pytest.mark.chaos  # tests/unit/examples has the job without Spark
def test_sessions_and_late_clicks_are_those_of_the_model(stories: Stories) -> None:
    """Each hour of clicks is a micro-batch; which clicks are late depends on the earlier ones."""
    out = stories.told("sessions")
    model = stories.beside("sessions", "session_reference").Model()
    for clicks in stories.beside("sessions", "feed").hours(12):
        model.take(clicks)
    model.end()
    clicks = sum(session["clicks"] for session in model.sessions)
    sums = f"{len(model.sessions)} sessions with {clicks} clicks; {len(model.late)} clicks came too late"
    assert sums in out
    assert model.late
    for user in ("U00", "U01"):
        mine = sorted((one for one in model.sessions if one["user"] == user), key=lambda one: one["start"])
        table = out.partition(f"Sessions of {user}")[2].partition("└")[0]
        found = re.findall(r"^│ (\S+) │ (\S+) │ (\d+)", table, re.MULTILINE)
        assert found == [
            (f"{one['start']:%H:%M:%S}", f"{one['end']:%H:%M:%S}", str(one["clicks"])) for one in mine
        ]


def test_the_profit_of_each_month_is_told_while_sales_come(stories: Stories, tmp_path: Path) -> None:
    """Sales come from a separate server, each counted once; invalid lines are dead letters."""
    options = ["--port", str(free_port()), "--sales", "300", "--per-second", "300", "--to", str(tmp_path)]
    out = stories.told("profit_per_month", *options)
    assert "and 3 lines of the server were not sales" in out
    header, *rows = (tmp_path / "profitPerMonthWindowed.txt").read_text().splitlines()
    assert header == '"month","window_start","window_end","profit","count"'
    found: dict[str, Counter[str]] = {}
    for row in rows:
        month, _, _, profit, count = row.split(",")
        found.setdefault(month.strip('"'), Counter()).update(profit=int(profit), count=int(count))
    wanted: dict[str, Counter[str]] = {}
    for line in stories.beside("profit_per_month", "sales_server").sales(300):
        if re.fullmatch(r"[-\d]+,\w+,\w+,\w+,\d+", line):
            _, month, _, _, profit = line.split(",")
            wanted.setdefault(month, Counter()).update(profit=int(profit), count=1)
    assert found == wanted
