"""Metrics as Prometheus sees them: rules that its own tool accepts and tries, and a job that is scraped."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_process import EXAMPLE, JobProcess, await_true
from prometheus_client.parser import text_string_to_metric_families
from promtool import find_promtool, promtool
from rooms import Rooms, write_file
from typer.testing import CliRunner

from penstock.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return find_promtool(tmp_path_factory.mktemp("promtool"))


def test_alert_rules_are_sound_and_do_what_they_say(tool: str) -> None:
    """Prometheus accepts each, and each fires and stays quiet in its unit test."""
    rules, tests = (DEPLOY / "prometheus" / name for name in ("alerts.yml", "alerts_test.yml"))
    promtool(tool, "check", "rules", "--lint=all", "--lint-fatal", rules)
    promtool(tool, "test", "rules", tests)
    names = {
        rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]
    }
    tried: dict[str, list[bool]] = {}
    for case in yaml.safe_load(tests.read_text())["tests"]:
        for expected in case["alert_rule_test"]:
            tried.setdefault(expected["alertname"], []).append(bool(expected.get("exp_alerts")))
    assert set(tried) == names
    assert [name for name, fires in tried.items() if set(fires) != {True, False}] == []


def test_queries_of_the_dashboard_can_be_asked(tool: str, tmp_path: Path) -> None:
    """Prometheus can read each of them, once Grafana has put in its variables."""
    found = queries(json.loads((DEPLOY / "grafana" / "penstock.json").read_text()))
    rules = [
        {
            "record": f"query{number}",
            "expr": text.replace("$__rate_interval", "1m").replace("$job_name", ".*"),
        }
        for number, text in enumerate(found)
    ]
    assert not any("$" in rule["expr"] for rule in rules)
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert re.search(rf"\b{len(found)} rules found", promtool(tool, "check", "rules", path))


def queries(dashboard: Any) -> list[str]:
    """The queries in all parts of a dashboard."""
    if isinstance(dashboard, dict):
        own = [dashboard["expr"]] if isinstance(dashboard.get("expr"), str) else []
        return own + [found for value in dashboard.values() for found in queries(value)]
    if isinstance(dashboard, list):
        return [found for value in dashboard for found in queries(value)]
    return []


def lines_of(text: str) -> list[dict[str, Any]]:
    """All whole lines, each of which must be an object."""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def address(job: JobProcess) -> str:
    """Where the job says that its metrics are."""
    await_true(lambda: "/metrics" in job.err or not job.running, lambda: job.err)
    return next(
        found[0]
        for each in lines_of(job.err)
        if (found := re.findall(r"http://\S+/metrics", each["message"]))
    )


def scraped(url: str) -> dict[tuple[str, str], float]:
    """The values that Prometheus would get, by name and the label that is not the job's name."""
    with urllib.request.urlopen(url, timeout=10) as response:  # on this machine
        text = response.read().decode()
    return {
        (
            sample.name,
            next((value for name, value in sample.labels.items() if name != "job_name"), ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def here(*arguments: str) -> str:
    """What a command prints that only reads the checkpoint."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_job_is_scraped_and_on_record(tmp_path: Path, tool: str) -> None:
    """Over a kill -9: metrics by HTTP and in the checkpoint agree, who did what is told, logs are lines of JSON."""
    rooms, checkpoint = Rooms(3), tmp_path / "checkpoint"
    write_file(tmp_path / "settings", "000.jsonl", rooms.first_settings())
    sent = 0

    def feed(name: str) -> None:
        nonlocal sent
        readings = [reading for _ in range(20) for reading in rooms.readings()]
        write_file(tmp_path / "readings", name, readings)
        sent += len(readings)

    feed("000.jsonl")
    names = ("readings", "settings", "heaters")
    arguments = [
        str(EXAMPLE),
        *(f"-D{name}=jsonl:{tmp_path / name}" for name in names),
        *("--checkpoint", str(checkpoint), "--metrics-bind", "127.0.0.1:0", "--log-format", "json", "-ojson"),
    ]
    read = ("penstock_records_in_total", "readings")
    with JobProcess(arguments, tmp_path) as job:
        url = address(job)
        await_true(lambda: scraped(url)[read] == sent, lambda: f"{scraped(url)} {job.err}")
        metrics = scraped(url)
        figures = json.loads(here("metrics", str(checkpoint), "-ojson"))
        promtool_accepts(tool, url, tmp_path)
        job.signal(signal.SIGKILL)
        job.await_end_of_family()
    assert figures["running"]
    assert metrics["penstock_running", ""] == 1
    assert (
        metrics["penstock_step_keys", "thermostat"] == figures["figures"]["steps"]["thermostat"]["keys"] > 0
    )
    assert (
        metrics["penstock_records_out_total", "heaters"]
        == figures["figures"]["totals"]["records_out"]["heaters"]
    )
    assert metrics["penstock_lag_files", "readings"] == 0
    with pytest.raises(OSError, match="refused"):
        scraped(url)

    feed("001.jsonl")
    with JobProcess(arguments, tmp_path) as job:
        url = address(job)
        # Counters begin anew with each run, and keys are still known.
        await_true(lambda: scraped(url)[read] == sent / 2, lambda: f"{scraped(url)} {job.err}")
        here("stop", str(checkpoint))
        result = job.wait()
    assert result.code == 0
    logged = lines_of(result.err)
    assert {each["job"] for each in logged} == {"temperature-control"}
    assert {each["job_id"] for each in logged} == {result.summary["job_id"]}
    assert logged[-1]["message"].startswith("The job has stopped after ")
    events = [json.loads(line) for line in here("events", str(checkpoint), "-ojson").splitlines()]
    assert [event["event"] for event in events] == ["started", "started", "stopped"]
    first, second, end = events
    assert second["details"]["interrupted"] == first["job_id"]
    assert end["job_id"] == second["job_id"] == result.summary["job_id"]
    assert end["details"] == {"how": "request", "drain": False}
    assert end["by"] == first["by"] != ""
    assert not json.loads(here("metrics", str(checkpoint), "-ojson"))["running"]


def promtool_accepts(tool: str, url: str, folder: Path) -> None:
    """Prometheus' own tool finds nothing to say of the metrics' names, types and texts."""
    with urllib.request.urlopen(url, timeout=10) as response:  # on this machine
        path = folder / "metrics.txt"
        path.write_bytes(response.read())
    with path.open("rb") as file:
        promtool(tool, "check", "metrics", stdin=file)
