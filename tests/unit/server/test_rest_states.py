"""The state of jobs by REST: keys with their values, and dumps to take away."""

from __future__ import annotations

import contextlib
import io
import shutil
import sqlite3
import sys
import time
import zipfile

import msgspec
import pytest
from rest_support import RestPlace
from rooms_job import snapshot, stored_rooms
from spark_partitions import commit_versions, describe_operator

from penstock.commands.command_catalog import CONTROL_FILE, CommandCatalog, StepEntry
from penstock.errors import ExternalSystemError
from penstock.savepoints.state_pages import KeyPage, StoredKey
from penstock.server.api.access import Role
from penstock.server.manager import operations
from penstock.server.service.state_client import StateClient
from penstock.server.service.state_process import KeysQuestion
from penstock.snapshots.manifest import MANIFEST, Manifest

PATIENCE_S = 40.0
NO_BATCH = {"batch": -1, "items": [], "next": None}


def committed(place: RestPlace) -> str:
    """A job that has committed a micro-batch."""
    job_id = place.submit()
    checkpoint = place.begin(job_id)
    assert place.ask("GET", f"/v1/jobs/{job_id}/state/keys?step=step 0").json() == NO_BATCH
    (checkpoint.spark_folder / "commits").mkdir()
    (checkpoint.spark_folder / "commits" / "0").write_text("v1")
    return job_id


def test_models_are_listed_with_their_versions(place: RestPlace) -> None:
    """As the job's checkpoint has them; they hold nothing of its records."""
    job_id = place.submit()
    folder = place.begin(job_id).folder
    steps = {"score": StepEntry("string", {}, (), (), models=("fraud",))}
    (folder / CONTROL_FILE).write_bytes(msgspec.json.encode(CommandCatalog("rooms", "", steps)))
    about = {"format": "onnx", "sha256": "ab", "uri": "/m", "metadata": {"auc": 0.9}, "changed_by": "ann"}
    versions = {"score": {"fraud": {"1": {"status": "SERVING", **about}}}}
    scores = {"score": {"fraud": {"1": {"records": 4, "failures": 1, "seconds": 0.002}}}}
    counts = {"batch": 0, "models": versions, "scores": scores}
    (folder / "counts.json").write_bytes(msgspec.json.encode(counts))
    (model,) = place.ask("GET", f"/v1/jobs/{job_id}/models", Role.VIEWER).json()
    (version,) = model["versions"]
    assert (model["step"], model["model"], version["status"]) == ("score", "fraud", "SERVING")
    assert (version["records"], version["failures"], version["ms"]) == (4, 1, 500.0)
    assert version["metadata"] == {"auc": 0.9}


def test_keys_are_asked_for(place: RestPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process of its own answers; by those who may see what records hold."""
    asked: list[KeysQuestion] = []

    def keys(self: StateClient, question: KeysQuestion) -> KeyPage:
        asked.append(question)
        if question.wanted.contains:
            raise ExternalSystemError("The state of jobs is being read for other users. Try again.")
        held = StoredKey(
            key=[1, "b"], key_group=3, bytes=9, values={"limit": 7}, timers=[{"at": 5}], windows=None
        )
        return KeyPage(batch=0, items=(held,), next="3." + "0" * 32)

    monkeypatch.setattr(StateClient, "keys", keys)
    job_id = committed(place)
    path = f"/v1/jobs/{job_id}/state/keys?step=step 0"
    answer = place.ask("GET", f"{path}&limit=7&after=2.{'a' * 32}", Role.OPERATOR)
    assert answer.json() == {
        "batch": 0,
        "items": [
            {
                "key": [1, "b"],
                "key_group": 3,
                "bytes": 9,
                "values": {"limit": 7},
                "timers": [{"at": 5}],
                "windows": None,
            }
        ],
        "next": "3." + "0" * 32,
    }
    (question,) = asked
    assert question.checkpoint == str(place.service.checkpoint(job_id))
    assert (question.wanted.limit, question.wanted.after) == (7, "2." + "a" * 32)
    assert place.ask("GET", f"{path}&key=5").status_code == 200
    assert (asked[-1].wanted.key, asked[-1].wanted.max_bytes) == ("5", 1 << 20)
    busy = place.ask("GET", f"{path}&contains=x")
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "5")
    assert place.ask("GET", path, Role.VIEWER).status_code == 403


def stored(place: RestPlace) -> str:
    """A job that has committed a micro-batch, with the state of its first slot."""
    job_id = committed(place)
    folder = place.service.checkpoint(job_id)
    entries = next(entries for (_, number), entries in stored_rooms().stored.items() if number == 0)
    describe_operator(folder, "step/step 0")
    shutil.rmtree(folder / "commits")
    commit_versions(folder, "step/step 0", [[entries], [{}]], 1)
    return job_id


def test_keys_are_read_by_a_process(place: RestPlace) -> None:
    """They come in pages, and one can be named."""
    job_id = stored(place)
    path = f"/v1/jobs/{job_id}/state/keys?step=step 0"
    first = place.ask("GET", f"{path}&limit=1").json()
    rest = place.ask("GET", f"{path}&after={first['next']}").json()
    found = [*first["items"], *rest["items"]]
    assert (first["batch"], rest["next"]) == (0, None)
    assert 1 < len(found) < 10
    for one in found:
        assert one["values"] == {"limit": one["key"] * 2}
        assert place.ask("GET", f"{path}&key={one['key']}").json()["items"] == [one]
    assert place.ask("GET", f"{path}&key=99").json()["items"] == []
    assert place.ask("GET", f"{path}&batch=1").status_code == 409


def test_a_query_is_answered_by_a_process(place: RestPlace) -> None:
    """With the micro-batch; a wrong query has its position. Only those who may see what records hold may ask."""
    job_id = stored(place)
    path = f"/v1/jobs/{job_id}/state/query"
    query = 'select count(*) > 0 as some, max("limit" - key_0) >= 0 as right from state."step 0"'
    answer = place.ask("POST", path, Role.OPERATOR, json={"sql": query})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "batch": 0,
        "columns": [{"name": "some", "type": "bool"}, {"name": "right", "type": "bool"}],
        "rows": [{"some": True, "right": True}],
    }
    wrong = place.ask("POST", path, json={"sql": "select nothing from state.nowhere"})
    assert "(at line 1, column 21)" in wrong.json()["detail"], wrong.text
    assert wrong.status_code == 400
    assert place.ask("POST", path, json={"sql": query, "rows": 0}).status_code == 422
    assert place.ask("POST", path, Role.VIEWER, json={"sql": query}).status_code == 403
    assert place.ask("POST", "/v1/jobs/none/state/query", json={"sql": query}).status_code == 404


def test_what_is_said_wrongly_needs_no_process(place: RestPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown step, an invalid key, a place that is missing, a job without state."""
    monkeypatch.setattr(StateClient, "keys", None)
    job_id = committed(place)
    path = f"/v1/jobs/{job_id}/state/keys"
    unknown = place.ask("GET", f"{path}?step=attic")
    assert (unknown.status_code, "its steps are step 0" in unknown.json()["detail"]) == (404, True)
    assert place.ask("GET", f"{path}?step=step 0&key=attic").status_code == 409
    assert place.ask("GET", f"{path}?step=step 0&after=x").status_code == 422
    assert place.ask("GET", f"/v1/jobs/{place.submit()}/state/keys?step=a").status_code == 409


# Stands in for `penstock.cli`: writes a dump where it is told to, or fails on the way.
TASK = """
import json, os, shutil, sys
arguments = sys.argv[1:]
assert arguments[:2] == ["state", "dump"], arguments
place = arguments[arguments.index("--to") + 1]
made = MADE
if "--batch" in arguments:
    os.makedirs(place)
    open(os.path.join(place, "part"), "w").close()
    print("Error: The checkpoint does not keep that micro-batch.")
    raise SystemExit(2)
shutil.copytree(made, place)
print(json.dumps({"kind": "dump", "id": "drawn-7", "uri": place, "rows": 11}))
"""


def done(place: RestPlace, operation: dict[str, object]) -> dict[str, object]:
    """The operation, when the manager has done it."""
    operator = place.operator()
    leader = place.store.lead("here", 60_000)
    assert leader is not None
    deadline = time.monotonic() + PATIENCE_S
    while operation["state"] in ("PENDING", "RUNNING"):
        assert time.monotonic() < deadline
        operator.work(leader)
        time.sleep(0.05)
        operation = place.ask("GET", f"/v1/operations/{operation['id']}").json()
    return operation


@pytest.fixture
def ran(place: RestPlace, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that has run, of which dumps can be taken."""
    made = place.root / "made"
    snapshot(made, "csv")
    monkeypatch.setattr(operations, "_CLI", (sys.executable, "-c", TASK.replace("MADE", repr(str(made)))))
    job_id = place.submit()
    assert place.ask("POST", f"/v1/jobs/{job_id}/state/dumps", json={}).status_code == 409
    with contextlib.closing(sqlite3.connect(place.home.store)) as store:
        store.execute("UPDATE jobs SET epoch = 1")
        store.commit()
    return job_id


def test_a_dump_is_taken_away(place: RestPlace, ran: str) -> None:
    """Asked for once with a key, made by the manager, loaded as an archive, deleted by who may."""
    path = f"/v1/jobs/{ran}/state/dumps"
    asked = [
        place.ask("POST", path, Role.OPERATOR, json={"format": "csv"}, headers={"Idempotency-Key": "k1"})
        for _ in range(2)
    ]
    assert [one.status_code for one in asked] == [202, 202]
    assert asked[0].json() == asked[1].json()
    operation = done(place, place.ask("GET", asked[0].headers["Location"]).json())
    dump_id = operation["id"]
    assert (operation["state"], operation["result"]) == (
        "DONE",
        {"kind": "dump", "id": dump_id, "uri": str(place.home.dumps / str(dump_id)), "rows": 11},
    )
    (listed,) = place.ask("GET", "/v1/dumps", Role.VIEWER).json()["items"]
    assert (listed["id"], listed["job"], listed["rows"], listed["batch"]) == (dump_id, ran, 11, 7)
    assert listed["created_by"] == "operator-person"
    answer = place.ask("GET", f"/v1/dumps/{dump_id}", Role.OPERATOR)
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="{dump_id}.zip"'
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    manifest = (place.home.dumps / str(dump_id) / MANIFEST).read_bytes()
    assert archive.read(MANIFEST) == manifest
    known = msgspec.json.decode(manifest, type=Manifest)
    files = [file for table in known.tables for file in (table.schema_file, *table.files)]
    assert {MANIFEST, *(file.path for file in files)} == set(archive.namelist())
    for file in files:
        assert len(archive.read(file.path)) == file.bytes
    assert place.ask("GET", f"/v1/dumps/{dump_id}", Role.VIEWER).status_code == 403
    assert place.ask("DELETE", f"/v1/dumps/{dump_id}", Role.VIEWER).status_code == 403
    assert place.ask("DELETE", f"/v1/dumps/{dump_id}", Role.OPERATOR).status_code == 204
    assert not (place.home.dumps / str(dump_id)).exists()
    assert place.ask("GET", f"/v1/dumps/{dump_id}").status_code == 404
    assert place.ask("GET", "/v1/dumps").json()["items"] == []
    told = [(event.who, event.what) for event in place.service.events(ran) if "dump" in event.what]
    assert told == [
        ("operator-person", "asked for: dump"),
        ("manager", "dump is done"),
        ("operator-person", "asked for: delete dump"),
    ]


def test_a_dump_outlives_its_job(place: RestPlace, ran: str) -> None:
    """And is deleted by itself, in the name of the user who asks."""
    asked = place.ask("POST", f"/v1/jobs/{ran}/state/dumps", json={}).json()
    dump_id = done(place, asked)["id"]
    with contextlib.closing(sqlite3.connect(place.home.store)) as store:
        store.execute("UPDATE jobs SET status = 'CANCELED', epoch = 0")
        store.commit()
    place.service.delete(ran, "ann")
    (listed,) = place.ask("GET", "/v1/dumps").json()["items"]
    assert (listed["id"], listed["job"]) == (dump_id, ran)
    assert place.ask("GET", f"/v1/dumps/{dump_id}").status_code == 200
    assert place.ask("DELETE", f"/v1/dumps/{dump_id}").status_code == 204
    assert list(place.home.dumps.iterdir()) == []


def test_a_dump_that_fails_leaves_nothing(place: RestPlace, ran: str) -> None:
    """But the reason; and the id of another operation is that of no dump."""
    asked = place.ask("POST", f"/v1/jobs/{ran}/state/dumps", json={"batch": 3}).json()
    operation = done(place, asked)
    assert (operation["state"], operation["error"]) == (
        "FAILED",
        "The checkpoint does not keep that micro-batch.",
    )
    assert not (place.home.dumps / str(operation["id"])).exists()
    assert place.ask("GET", f"/v1/dumps/{operation['id']}").status_code == 404
    savepoint = place.ask("POST", f"/v1/jobs/{ran}/savepoints").json()["id"]
    assert place.ask("GET", f"/v1/dumps/{savepoint}").status_code == 404
