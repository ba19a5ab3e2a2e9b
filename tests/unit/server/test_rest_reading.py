"""What REST tells of the inside of a job, read from what its driver has left."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from rest_support import RestPlace
from rooms_job import snapshot
from small_metrics import metrics_of_batch

from penstock.base.instants import milliseconds_of
from penstock.bindings.secrets import redact
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.commands.command_catalog import CONTROL_FILE, read_command_catalog
from penstock.metrics.batch_metrics import BatchMetricsWriter, Lag, StepBatchMetrics, Totals
from penstock.metrics.latency import Latency
from penstock.operators.record_blocks import DeadLetter
from penstock.server.api.access import Role

SECRET = "canary-7a31"
AT = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def started(place: RestPlace) -> str:
    """A job whose checkpoint has what a driver writes at its start."""
    job_id = place.submit()
    place.begin(job_id, receipts=f"kafka://127.0.0.1:9092/told?sasl.password={SECRET}")
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
    assert plan["nodes"][0]["binding"]["limits"] == {"bytes": 256 << 20}
    config = place.ask("GET", f"/v1/jobs/{job_id}/config").json()
    assert config["limits"] == {"readings-0": {"bytes": 256 << 20}}


def test_a_job_that_was_never_started_has_no_plan(place: RestPlace) -> None:
    """It says so, and a job that there is not is not there."""
    answer = place.ask("GET", f"/v1/jobs/{place.submit()}/plan")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:penstock:problem:checkpoint")
    assert place.ask("GET", "/v1/jobs/none/plan").status_code == 404


def write_batch_metrics(place: RestPlace, job_id: str, batches: range) -> None:
    """As a run leaves them, a micro-batch a second."""
    writer = BatchMetricsWriter(place.service.checkpoint(job_id))
    for batch in batches:
        started = AT + dt.timedelta(seconds=batch)
        writer.append(
            metrics_of_batch(
                batch,
                started,
                0.5,
                job="drawn",
                job_id="drawn-1",
                records_in={"readings-0": 10},
                records_out={"out": 5},
                latency={"out": Latency((0, 5), 0.007, 0.0014)},
                lag={"readings-0": Lag(records=3, seconds=0.25)},
                steps={
                    "step 0": StepBatchMetrics(
                        records=10, keys=4, state_bytes=100, skew=1.5, watermark=started
                    )
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
    write_batch_metrics(place, job_id, range(100))
    found = place.ask("GET", f"/v1/jobs/{job_id}/metrics?limit=2&window_s=10").json()
    assert found["streams"] == [
        {
            "name": "readings-0",
            "records": 1000,
            "per_second": 10.0,
            "lag": {"records": 3, "files": None, "bytes": None, "seconds": 0.25},
        }
    ]
    (sink,) = found["sinks"]
    assert (sink["name"], sink["records"], sink["per_second"]) == ("out", 500, 5.0)
    latency = {"outputs": 50, "p50_s": 0.00125, "p95_s": 0.0014, "p99_s": 0.0014, "longest_s": 0.0014}
    assert sink["latency"] == latency
    assert (found["mode"], found["checkpoint_interval_ms"]) == ("micro-batches", 0)
    (step,) = found["steps"]
    assert (step["name"], step["records"], step["per_second"], step["keys"]) == ("step 0", 1000, 10.0, 4)
    last_ms = milliseconds_of(AT) + 99_000
    assert step["watermark_ms"] == last_ms
    assert (found["utilisation"], found["batches_per_second"], found["dead_letters"]) == (0.5, 1.0, 7)
    assert [batch["batch"] for batch in found["batches"]] == [98, 99]
    newest = found["batches"][-1]
    assert (newest["started_ms"], newest["ended_ms"]) == (last_ms, last_ms + 500)
    assert newest["steps"]["step 0"]["watermark_ms"] == last_ms
    assert newest["latency"] == {"out": latency | {"outputs": 5}}

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
    write_batch_metrics(place, job_id, range(3))
    path = f"/v1/jobs/{job_id}/metrics/stream?seconds=1"

    def told(headers: dict[str, str] | None = None) -> list[int]:
        text = place.ask("GET", path, headers=headers).text
        return [json.loads(line[6:])["batch"] for line in text.splitlines() if line.startswith("data: ")]

    assert told() == [2]
    assert told({"Last-Event-ID": "0"}) == [1, 2]
    assert told({"Last-Event-ID": "2"}) == []
    assert place.ask("GET", "/v1/jobs/none/metrics/stream").status_code == 404


def test_prometheus_sees_all_jobs(place: RestPlace) -> None:
    """By their ids, for two may have one name; those that are over, and those without metrics, are not there."""
    first = started(place)
    write_batch_metrics(place, first, range(2))
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


def commit(place: RestPlace, job_id: str, first: int, count: int) -> None:
    """As Spark leaves its log of commits."""
    checkpoint = Checkpoint(place.service.checkpoint(job_id))
    lineage = checkpoint.known_lineage()
    checkpoint.begin(msgspec.structs.replace(lineage, first_batch=first))
    (checkpoint.spark_folder / "commits").mkdir()
    for number in range(count):
        (checkpoint.spark_folder / "commits" / str(number)).write_text("v1")


def test_checkpoints_are_listed(place: RestPlace) -> None:
    """Those that are kept, newest first, in pages; by the numbers that they have in the life of the checkpoint."""
    job_id = started(place)
    path = f"/v1/jobs/{job_id}/checkpoints"
    assert place.ask("GET", path).json()["items"] == []
    commit(place, job_id, 10, 5)
    write_batch_metrics(place, job_id, range(13, 15))
    first = place.ask("GET", f"{path}?limit=3").json()
    assert [one["batch"] for one in first["items"]] == [14, 13, 12]
    assert first["items"][0]["duration_s"] == 0.5
    assert (first["items"][0]["state_bytes"], first["items"][0]["keys"]) == (100, 4)
    assert first["items"][2]["state_bytes"] is None
    assert (first["next"], first["epoch"], first["origin"], first["retained_batches"]) == (
        "12",
        0,
        "empty",
        100,
    )
    rest = place.ask("GET", f"{path}?after={first['next']}").json()
    assert ([one["batch"] for one in rest["items"]], rest["next"]) == ([11, 10], None)


def test_dead_letters_are_listed(place: RestPlace) -> None:
    """With their reasons, from where the job's own binding puts them; for those who may see what records hold."""
    job_id = started(place)
    path = f"/v1/jobs/{job_id}/dead-letters"
    assert place.ask("GET", path).json() == {"items": [], "reasons": []}
    folder = place.service.checkpoint(job_id) / "dead-letters"
    folder.mkdir()
    letters = [
        DeadLetter("no number", "readings-0", "", "00000", number, b"x" * 5000 if number else b"\xff")
        for number in range(3)
    ]
    letters.append(DeadLetter("boom", "readings-0", "step 0", "00000", 9, b"{}"))
    (folder / "part-0001-0000000007.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, letters)) + b"\n")
    found = place.ask("GET", path, Role.OPERATOR).json()
    assert [one["offset"] for one in found["items"]] == [0, 1, 2, 9]
    assert found["reasons"] == [
        {"reason": "no number", "step": "", "stream": "readings-0", "count": 3},
        {"reason": "boom", "step": "step 0", "stream": "readings-0", "count": 1},
    ]
    odd, long = found["items"][:2]
    assert (odd["raw"], odd["encoding"], odd["batch"]) == ("/w==", "base64", 7)
    assert (long["raw"], long["encoding"], long["raw_bytes"]) == ("x" * 4096, "text", 5000)
    assert [one["offset"] for one in place.ask("GET", f"{path}?limit=1").json()["items"]] == [9]
    assert place.ask("GET", path, Role.VIEWER).status_code == 403


def test_a_job_tells_its_settings(place: RestPlace) -> None:
    """Each with its default, without what may be secret."""
    place.define("secret", f"spark: {{spark.hadoop.fs.s3a.secret.key: {SECRET}}}\nparallelism: 3")
    (place.definitions / "secret.yaml").write_text(
        "job: secret.py\nparallelism: 3\n"
        f"spark: {{spark.hadoop.fs.s3a.secret.key: {SECRET}}}\n"
        f"bindings: {{out: 'kafka://h:9092/t?sasl.password={SECRET}'}}\n"
    )
    answer = place.ask("GET", f"/v1/jobs/{place.submit('secret')}/config")
    settings = {one["name"]: one for one in answer.json()["settings"]}
    assert settings["parallelism"] == {
        "name": "parallelism",
        "value": 3,
        "default": None,
        "is_default": False,
    }
    assert settings["retained_batches"]["is_default"]
    assert settings["spark"]["value"] == {"spark.hadoop.fs.s3a.secret.key": "***"}
    assert answer.json()["bindings"] == {"out": "kafka://h:9092/t?sasl.password=***"}
    assert answer.json()["definition"] == "secret"
    assert answer.json()["limits"] == {}
    assert SECRET not in answer.text


def savepoint(place: RestPlace, savepoint_id: str) -> Path:
    where = Path(place.home.savepoints) / savepoint_id
    snapshot(where, "arrow", id=savepoint_id, created_at="2026-12-01T12:00:00+00:00")
    return where


def test_a_savepoint_tells_what_it_holds(place: RestPlace) -> None:
    """Its tables with their rows and sizes, and where streams continue."""
    savepoint(place, "sp-1")
    found = place.ask("GET", "/v1/savepoints/sp-1").json()
    tables = {table["name"]: table for table in found["tables"]}
    assert set(tables) == {"step 0/limit", "step 0/shared/factor"}
    assert (tables["step 0/limit"]["rows"], tables["step 0/limit"]["kind"]) == (10, "state")
    assert found["rows"] == 11
    assert found["bytes"] > sum(table["bytes"] for table in found["tables"]) > 0
    assert found["positions"]["commands"] == {"position": 1}
    assert found["used_by"] == []
    assert place.ask("GET", "/v1/savepoints/sp-2").status_code == 404


def test_a_savepoint_is_deleted_by_an_admin(place: RestPlace) -> None:
    """Unless a job that is not over has begun with it; the audit log says who did it."""
    where = savepoint(place, "sp-1")
    other = savepoint(place, "sp-2")
    job_id = place.submit(from_savepoint="sp-1")
    assert place.ask("GET", "/v1/savepoints/sp-1").json()["used_by"] == [job_id]
    assert place.ask("DELETE", "/v1/savepoints/sp-1", Role.OPERATOR).status_code == 403
    refused = place.ask("DELETE", "/v1/savepoints/sp-1")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:penstock:problem:job-state")
    assert job_id in refused.json()["detail"]
    place.ask("PATCH", f"/v1/jobs/{job_id}", json={"desired": "CANCELED"})
    assert place.ask("DELETE", "/v1/savepoints/sp-2").status_code == 204
    assert not (other / "manifest.json").exists()
    assert (where / "manifest.json").exists()
    assert [one["id"] for one in place.ask("GET", "/v1/savepoints").json()["items"]] == ["sp-1"]
    assert place.ask("DELETE", "/v1/savepoints/sp-2").status_code == 404
    (event,) = [e for e in place.service.events() if "savepoint" in e.what]
    assert (event.who, event.what) == ("admin-person", "asked for: delete savepoint")
    assert event.detail == {"savepoint": "sp-2"}


def test_a_command_goes_where_variables_lead(place: RestPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a password that only the environment has; the audit log has who sent it, and not what it held."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    producer.produce("steering", b"{}")
    assert producer.flush(10) == 0
    login = f"kafka://{broker.host}:{broker.port}/steering?sasl.username=u"
    uri = f"{login}&sasl.password=${{STEERING_PASSWORD}}"
    (place.definitions / "small.yaml").write_text(f"job: small.py\nbindings: {{commands: '{uri}'}}\n")
    job_id = started(place)
    checkpoint = Checkpoint(place.service.checkpoint(job_id))
    entry = read_command_catalog(checkpoint.folder)
    checkpoint.save(CONTROL_FILE, msgspec.structs.replace(entry, commands=redact(uri)))
    given = {"kind": "set", "target": "step 0/5", "payload": {"limit": 987654}}
    path = f"/v1/jobs/{job_id}/commands"
    refused = place.ask("POST", path, json=given)
    assert (refused.status_code, "STEERING_PASSWORD" in refused.json()["detail"]) == (422, True)
    monkeypatch.setenv("STEERING_PASSWORD", SECRET)
    sent = place.ask("POST", path, Role.OPERATOR, json=given)
    assert sent.status_code == 202, sent.text
    assert SECRET not in sent.text
    (event,) = [e for e in place.service.events(job_id) if e.what == "asked for: command"]
    assert event.who == "operator-person"
    assert event.detail == {
        "command": sent.json()["id"],
        "kind": "set",
        "target": "step 0/5",
        "version": None,
    }


def test_variables_of_the_server_itself_lead_nowhere(
    place: RestPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job does not see them, and so a binding cannot have them."""
    monkeypatch.setenv("PENSTOCK_SERVER_TOKENS", SECRET)
    (place.definitions / "small.yaml").write_text(
        "job: small.py\nbindings: {commands: 'kafka://h:9092/t?sasl.password=${PENSTOCK_SERVER_TOKENS}'}\n"
    )
    job_id = started(place)
    checkpoint = Checkpoint(place.service.checkpoint(job_id))
    entry = read_command_catalog(checkpoint.folder)
    checkpoint.save(
        CONTROL_FILE, msgspec.structs.replace(entry, commands="kafka://h:9092/t?sasl.password=***")
    )
    answer = place.ask("POST", f"/v1/jobs/{job_id}/commands", json={"kind": "set", "target": "step 0"})
    assert answer.status_code == 422
    assert "is not set" in answer.json()["detail"]
    assert SECRET not in answer.text
