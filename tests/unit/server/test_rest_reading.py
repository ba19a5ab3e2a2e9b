"""What REST tells of the inside of a job, read from what its driver has left."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rest_support import RestPlace
from rooms_job import rooms

from penstock.instants import milliseconds_of
from penstock.jobs.beginning import declared_state
from penstock.jobs.binding import bind_job
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.control import CONTROL_FILE
from penstock.jobs.described_graph import GRAPH_FILE
from penstock.jobs.described_state import STATE_FILE
from penstock.jobs.figures import Figures, FiguresWriter, Lag, StepFigures, Totals
from penstock.jobs.settings import RunSettings
from penstock.server.api.access import Role

SECRET = "canary-7a31"
AT = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RestPlace]:
    made = RestPlace(tmp_path)
    yield made
    made.close()


def started(place: RestPlace) -> str:
    """A job whose checkpoint has what a driver writes at its start."""
    job_id = place.submit()
    (place.root / "in").mkdir()
    checkpoint = Checkpoint.open(str(place.service.checkpoint(job_id)))
    bindings = {
        "readings-0": f"jsonl:{place.root / 'in'}",
        "receipts": f"kafka://127.0.0.1:9092/told?sasl.password={SECRET}",
    }
    bound = bind_job(rooms(), RunSettings(bindings=bindings, parallelism=2), checkpoint)
    checkpoint.save(CONTROL_FILE, bound.control)
    checkpoint.save(GRAPH_FILE, bound.graph)
    checkpoint.save(STATE_FILE, declared_state(rooms()))
    return job_id


def test_the_plan_has_states_and_commands(place: RestPlace) -> None:
    """Of each step beside what it is made of; without secrets."""
    job_id = started(place)
    answer = place.ask("GET", f"/v1/jobs/{job_id}/plan")
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert (plan["job"], plan["key_groups"], plan["parallelism"]) == ("drawn", 4, 2)
    assert [(node["kind"], node["name"]) for node in plan["nodes"]] == [
        ("data stream", "readings-0"),
        ("step", "step 0"),
    ]
    step = plan["nodes"][1]
    assert step["states"] == [
        {"name": "limit", "kind": "ValueState", "type": "int64", "keyed": True},
        {"name": "factor", "kind": "Setting", "type": "double", "keyed": False},
    ]
    assert step["commands"]["set"] == ["key", "keys", "all", "step"]
    assert plan["edges"] == [
        {
            "source": "source/readings-0",
            "target": "step/step 0",
            "output": "",
            "kind": "keyed",
            "is_control": False,
            "key": ["key_0"],
        }
    ]
    assert plan["receipts"]["uri"].endswith("sasl.password=***")
    assert SECRET not in answer.text


def test_a_job_that_was_never_started_has_no_plan(place: RestPlace) -> None:
    """It says so, and a job that there is not is not there."""
    answer = place.ask("GET", f"/v1/jobs/{place.submit()}/plan")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:penstock:problem:checkpoint")
    assert place.ask("GET", "/v1/jobs/none/plan").status_code == 404


def write_figures(place: RestPlace, job_id: str, batches: range) -> None:
    """As a run leaves them, a micro-batch a second."""
    writer = FiguresWriter(place.service.checkpoint(job_id))
    for batch in batches:
        started = AT + dt.timedelta(seconds=batch)
        writer.append(
            Figures(
                job="drawn",
                job_id="drawn-1",
                batch=batch,
                started=started,
                ended=started + dt.timedelta(seconds=0.5),
                duration_s=0.5,
                parallelism=2,
                records_in={"readings-0": 10},
                records_out={"out": 5},
                lag={"readings-0": Lag(records=3, seconds=0.25)},
                steps={
                    "step 0": StepFigures(records=10, keys=4, state_bytes=100, skew=1.5, watermark=started)
                },
                totals=Totals(
                    batches=batch + 1,
                    busy_seconds=(batch + 1) / 2,
                    records_in={"readings-0": 10 * (batch + 1)},
                    records_out={"out": 5 * (batch + 1)},
                    step_records={"step 0": 10 * (batch + 1)},
                    dead_letters=7,
                    commands={"applied": 2},
                ),
            )
        )
    writer.close()


def test_metrics_are_told(place: RestPlace) -> None:
    """Of a job that does not run those at its end, with rates; and its newest micro-batches."""
    job_id = started(place)
    nothing = place.ask("GET", f"/v1/jobs/{job_id}/metrics").json()
    assert (nothing["batches"], nothing["steps"], nothing["running"]) == ([], [], False)
    write_figures(place, job_id, range(100))
    found = place.ask("GET", f"/v1/jobs/{job_id}/metrics?limit=2&window_s=10").json()
    assert found["streams"] == [
        {
            "name": "readings-0",
            "records": 1000,
            "per_second": 10.0,
            "lag": {"records": 3, "files": None, "bytes": None, "seconds": 0.25},
        }
    ]
    assert found["sinks"] == [{"name": "out", "records": 500, "per_second": 5.0}]
    (step,) = found["steps"]
    assert (step["name"], step["records"], step["per_second"], step["keys"]) == ("step 0", 1000, 10.0, 4)
    last_ms = milliseconds_of(AT) + 99_000
    assert step["watermark_ms"] == last_ms
    assert (found["utilisation"], found["batches_per_second"], found["dead_letters"]) == (0.5, 1.0, 7)
    assert [batch["batch"] for batch in found["batches"]] == [98, 99]
    newest = found["batches"][-1]
    assert (newest["started_ms"], newest["ended_ms"]) == (last_ms, last_ms + 500)
    assert newest["steps"]["step 0"]["watermark_ms"] == last_ms

    def batches(query: str) -> list[int]:
        answer = place.ask("GET", f"/v1/jobs/{job_id}/metrics?{query}").json()
        return [batch["batch"] for batch in answer["batches"]]

    assert batches("after=96") == [97, 98, 99]
    assert batches(f"since_ms={last_ms - 1500}") == [98, 99]
    assert batches("after=99") == []
    assert len(batches("")) == 60


def test_micro_batches_are_streamed(place: RestPlace) -> None:
    """The newest one, then each that follows; or those behind one that a client has seen."""
    job_id = started(place)
    write_figures(place, job_id, range(3))
    path = f"/v1/jobs/{job_id}/metrics/stream?seconds=1"

    def told(headers: dict[str, str] | None = None) -> list[int]:
        text = place.ask("GET", path, headers=headers).text
        return [json.loads(line[6:])["batch"] for line in text.splitlines() if line.startswith("data: ")]

    assert told() == [2]
    assert told({"Last-Event-ID": "0"}) == [1, 2]
    assert told({"Last-Event-ID": "2"}) == []
    assert place.ask("GET", "/v1/jobs/none/metrics/stream").status_code == 404


def test_prometheus_sees_all_jobs(place: RestPlace) -> None:
    """By their ids, for two may have one name; those that are over, and those without figures, are not there."""
    first = started(place)
    write_figures(place, first, range(2))
    place.submit()
    over = place.submit()
    place.ask("PATCH", f"/v1/jobs/{over}", json={"desired": "CANCELED"})
    answer = place.ask("GET", "/metrics", Role.VIEWER)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    (records,) = families["penstock_records_in"].samples
    assert (records.labels, records.value) == ({"job_name": first, "stream": "readings-0"}, 20)
    (running,) = families["penstock_running"].samples
    assert running.value == 0
    assert place.ask("GET", "/metrics", None).status_code == 401
