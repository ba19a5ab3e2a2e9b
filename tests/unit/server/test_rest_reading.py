"""What REST tells of the inside of a job, read from what its driver has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_support import RestPlace
from rooms_job import rooms

from penstock.jobs.beginning import declared_state
from penstock.jobs.binding import bind_job
from penstock.jobs.checkpoint import Checkpoint
from penstock.jobs.control import CONTROL_FILE
from penstock.jobs.described_graph import GRAPH_FILE
from penstock.jobs.described_state import STATE_FILE
from penstock.jobs.settings import RunSettings

SECRET = "canary-7a31"


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
