"""The commands for jobs of a server: their output and exit codes."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from asked_by_words import penstock, refused, told
from control_checkpoint import make_checkpoint, receipts, write_receipts
from loaded_modules import loaded_by
from served_rest import ServedRest
from small_metrics import metrics_of_batch
from typer.testing import CliRunner

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.cli import app
from penstock.metrics.batch_metrics import BatchMetrics, BatchMetricsWriter, Lag, StepBatchMetrics, Totals
from penstock.server.api.access import Role
from penstock.server.lifecycle.statuses import JobStatus

PATIENCE_S = 40.0


def until(place: ServedRest, job_id: str, status: JobStatus) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while place.service.get(job_id).status is not status:
        assert time.monotonic() < deadline, place.service.get(job_id)
        time.sleep(0.02)


def running(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a running job, without Spark."""
    place.manage(monkeypatch)
    job_id = place.submit()
    until(place, job_id, JobStatus.RUNNING)
    return job_id


def test_a_definition_is_submitted_with_what_a_client_may_say(place: ServedRest) -> None:
    """The job's id is printed; with JSON also the operation."""
    result = penstock(
        place,
        *("submit", "small", "--name=The rooms", "--parallelism=3", "--batch-interval=250"),
        *("--restart=fixed-delay:attempts=2,delay=5s", "--allow-non-restored-state", "--new-outputs-from=39"),
        "--replan=40",
    )
    job_id = result.stdout.strip()
    job = place.service.get(job_id)
    assert (job.name, job.definition, job.restart) == (
        "The rooms",
        "small",
        "fixed-delay:attempts=2,delay=5s",
    )
    assert (job.settings["parallelism"], job.settings["batch_interval"]) == (3, "250ms")
    assert job.settings["allow_non_restored_state"] is True
    assert job.settings["new_outputs_from"] == 39
    assert job.settings["replan"] == 40
    again = told(penstock(place, "submit", "small", "-ojson"))
    assert place.service.operation(again["operation"]).job == again["job"] != job_id


def test_the_scaling_policy_is_heeded_or_not(place: ServedRest) -> None:
    """The submitter decides; `info` shows the policy with its last decision."""
    place.define("scaled", "scaling: {max_tasks: 4}")
    for more, policy, shown in (
        ((), {"max_tasks": 4}, "max_tasks=4; no decision yet"),
        (("--scaling=dry-run",), {"max_tasks": 4, "dry_run": True}, "no decision yet"),
        (("--scaling=off",), None, None),
    ):
        job_id = penstock(place, "submit", "scaled", *more).stdout.strip()
        scaling = place.service.get(job_id).scaling
        assert (None if scaling is None else scaling.policy) == policy
        text = penstock(place, "info", job_id).stdout
        assert ("scaling" in text) == (shown is not None)
        assert (shown or "") in text


def test_a_server_takes_no_code(place: ServedRest) -> None:
    """A file is refused with the list of definitions; options reserved for definitions do not exist."""
    file = place.root / "job.py"
    file.write_text("")
    refused(penstock(place, "submit", file), "A server takes no code")
    refused(penstock(place, "submit", "none"), "There is no definition 'none'. Available definitions: small")
    for option in (
        "-Dhits=jsonl:x",
        "--checkpoint=x",
        "--master=local",
        "--bounded",
        "--from-dump=x",
        "--strict",
    ):
        unknown = penstock(place, "submit", "small", option)
        assert (unknown.exit_code, "No such option" in unknown.stderr) == (2, True), unknown.output
    elsewhere = penstock(place, "run", file, "--name=x")
    assert (elsewhere.exit_code, "No such option: --name" in elsewhere.stderr) == (2, True), elsewhere.output
    refused(penstock(place, "submit", "small", "--from-savepoint=sp-none"), "There is no savepoint")
    assert place.service.list_jobs() == []


def test_jobs_are_listed(place: ServedRest) -> None:
    """Either jobs that have not ended, all jobs, or those with a status; as a table or as JSON."""
    assert "No jobs are running" in penstock(place, "list").stderr
    job_id, over = place.submit(), place.submit(name="[old]")
    lines = penstock(place, "list").stdout.splitlines()
    assert lines[0].split()[:3] == ["id", "name", "status"]
    assert [line.split()[0] for line in lines[1:]] == [over, job_id]
    assert "[old]" in lines[1]
    found = told(penstock(place, "list", "--all", "-ojson"))
    assert [(job["id"], job["status"]) for job in found] == [(over, "CREATED"), (job_id, "CREATED")]
    assert told(penstock(place, "list", "--status=RUNNING", "--status=PAUSED", "-ojson")) == []
    assert "No such job" in penstock(place, "list", "--status=RUNNING").stderr


def test_a_job_is_found_by_id_name_or_beginning(place: ServedRest) -> None:
    """The error for an ambiguous one lists the matches."""
    one = place.submit(name="rooms")
    two = place.submit(name="halls")
    for called in (one, "rooms", one[:-3]):
        assert told(penstock(place, "info", called, "-ojson"))["id"] == one
    refused(penstock(place, "info", "attics"), "There is no job 'attics'")
    three = place.submit(name="rooms")
    result = penstock(place, "info", "rooms")
    refused(result, "2 jobs are called 'rooms'")
    assert one in result.stderr
    assert three in result.stderr
    assert told(penstock(place, "info", "hal", "-ojson"))["id"] == two


def test_a_job_is_shown(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown are status and reason, settings, runs, and progress."""
    job_id = running(place, monkeypatch)
    text = penstock(place, "info", job_id).stdout
    for part in ("RUNNING since", "small", "by admin-person", "micro-batch 7"):
        assert part in text
    found = told(penstock(place, "info", job_id, "-ojson"))
    assert (found["runs"][0]["run"], found["savepoints"], found["progress"]) == (1, [], {"batch_id": 7})
    listed = told(penstock(place, "list", "-ojson"))
    assert [(job["status"], job["progress"]) for job in listed] == [("RUNNING", {"batch_id": 7})]
    assert "RUNNING" in penstock(place, "list").stdout


def test_a_job_is_paused_resumed_rescaled_stopped_with_a_savepoint(
    place: ServedRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command waits until the status is reached."""
    job_id = running(place, monkeypatch)
    assert "is paused" in penstock(place, "pause", job_id).stderr
    assert place.service.get(job_id).status is JobStatus.PAUSED
    resumed = told(penstock(place, "resume", job_id, "-ojson"))
    assert resumed["job"] == job_id
    assert place.service.get(job_id).status is JobStatus.RUNNING
    rescaled = penstock(place, "rescale", job_id, "--parallelism=4").stdout.replace("\n", " ")
    assert "The parallelism was 1 and is 4 since micro-batch 7" in rescaled
    stopped = penstock(place, "stop", job_id, "--savepoint", "--drain")
    assert "stopped after micro-batch 7" in stopped.stderr
    assert place.service.get(job_id).status is JobStatus.FINISHED
    events = [json.loads(line) for line in penstock(place, "events", job_id, "-ojson").stdout.splitlines()]
    [stop] = [event for event in events if event["what"] == "asked for: stop"]
    assert (stop["detail"]["savepoint"], stop["detail"]["drain"]) == (True, True)
    done = place.service.operation(stop["detail"]["operation"]).result
    assert done is not None
    assert stopped.stdout.strip() == done["savepoint"]


def test_a_job_is_canceled_and_goes_on_in_another(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job uses its checkpoint."""
    job_id = running(place, monkeypatch)
    canceled = penstock(place, "cancel", job_id)
    assert (canceled.exit_code, "is canceled" in canceled.stderr) == (0, True)
    assert place.service.get(job_id).status is JobStatus.CANCELED
    refused(penstock(place, "rescale", job_id, "--parallelism=2"), "CANCELED")
    next_id = penstock(place, "submit", "small", f"--continues={job_id}").stdout.strip()
    assert place.service.checkpoint(next_id) == place.service.checkpoint(job_id)


def test_an_operation_need_not_be_waited_for(place: ServedRest) -> None:
    """Its id is printed; a timeout or failure gives exit code 1."""
    job_id = place.submit()
    printed = penstock(place, "cancel", job_id, "--no-wait").stdout.strip()
    assert place.service.operation(printed).kind == "cancel"
    paused = told(penstock(place, "pause", place.submit(), "--no-wait", "-ojson"))
    assert place.service.operation(paused["operation"]).job == paused["job"]
    refused(penstock(place, "cancel", place.submit(), "--timeout=0.2"), "did not finish within 0.2 s", 1)


def test_a_savepoint_that_cannot_be_is_told(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of the server's task."""
    job_id = running(place, monkeypatch)
    refused(penstock(place, "savepoint", job_id), f"The savepoint of {job_id} failed", 1)
    assert told(penstock(place, "savepoint", job_id, "--list", "-ojson")) == []


def test_places_are_not_for_clients(place: ServedRest) -> None:
    """A path from a client is refused, and so are server options for a checkpoint on disk."""
    job_id, folder = place.submit(), place.root
    refused(penstock(place, "stop", job_id, "--savepoint-path=/tmp/x"), "--savepoint-path names a place")
    refused(penstock(place, "savepoint", job_id, "--to=/tmp/x"), "--to names a place")
    refused(penstock(place, "savepoint", job_id, "--dispose=/etc/x"), "is not an id")
    refused(penstock(place, "savepoint", job_id, "--dispose=sp-x"), "There is no savepoint 'sp-x'")
    refused(penstock(place, "state", "dump", job_id, f"--to={folder}"), "is not empty")
    refused(penstock(place, "state", "dump", job_id, f"--to={folder}/new"), "was never started")
    refused(penstock(place, "stop", folder, "--no-wait"), "--no-wait works with a job of a server only")
    refused(
        penstock(place, "control", "send", job_id, "--kind=x", "-Dcommands=jsonl:x"), "goes with a checkpoint"
    )
    refused(
        penstock(place, "control", "send", job_id, "--kind=x", "--issued-by=eve"), "goes with a checkpoint"
    )
    assert place.service.get(job_id).status is JobStatus.CREATED


def test_what_a_run_prints_is_shown_and_followed(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the tail, then new output, in whole characters, and follows into the next run."""
    job_id = running(place, monkeypatch)
    path = place.home.run(job_id, 1) / "output.log"
    path.write_text("one\ntwo\n")
    assert penstock(place, "logs", job_id, "--bytes=4").stdout == "two\n"
    assert told(penstock(place, "logs", job_id, "--run=1", "-ojson")) == {"run": 1, "text": "one\ntwo\n"}
    refused(penstock(place, "logs", job_id, "--run=9"), "run 9")
    refused(penstock(place, "logs", job_id, role=Role.VIEWER), "needs the role operator")

    following = follow(place, "logs", job_id, "--follow")
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    with path.open("ab") as file:
        # Half of a character, then the rest.
        file.write(b"caf\xc3")
        file.flush()
        time.sleep(1)
        file.write(b"\xa9\n")
    assert following.stdout.readline() == "caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"
    following.kill()
    following.wait()


def follow(place: ServedRest, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "penstock.cli", *arguments],
        env={**os.environ, **place.environment()},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_events_are_listed_and_followed(place: ServedRest) -> None:
    """Events are those of one job or of the server, newest last; new ones follow."""
    job_id = place.submit()
    other = place.submit()
    lines = penstock(place, "events").stdout.splitlines()
    assert [line.split("  ")[1] for line in lines] == [job_id, other]
    assert "admin-person" in lines[0]
    assert len(penstock(place, "events", "--last=1").stdout.splitlines()) == 1
    following = follow(place, "events", job_id, "--follow", "-ojson")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["job_id"] == job_id
    place.service.cancel(other, "ann")
    place.service.pause(job_id, "ann")
    event = json.loads(following.stdout.readline())
    assert (event["job_id"], event["what"]) == (job_id, "asked for: pause")
    following.kill()
    following.wait()


def with_control(place: ServedRest) -> str:
    """Return a job that takes commands, with the receipts of two."""
    job_id = place.submit()
    made = make_checkpoint(place.service.checkpoint(job_id))
    write_receipts(made, 1, receipts("good", "APPLIED", 1, keys=2, key_groups=1, details='{"a":[1]}'))
    write_receipts(made, 2, receipts("bad", "REJECTED", 2, reason="[no] such state"))
    return job_id


def test_commands_are_sent_and_told(place: ServedRest) -> None:
    """It works as on a checkpoint, and records the user who sends."""
    job_id = with_control(place)
    sent = penstock(
        place,
        *("control", "send", job_id, "--kind=set", "--target=heat", "--keys=[1, 2]", '--json={"limit": 1.5}'),
        *("--id=mine", "--version=3", "--expires-in=60"),
        role=Role.OPERATOR,
    )
    assert (sent.exit_code, sent.stdout) == (0, "mine\n"), sent.output
    assert penstock(place, "control", "status", job_id, "mine").stdout == "mine: sent, no receipt yet\n"
    history = penstock(place, "control", "history", job_id).stdout.splitlines()
    assert [line.split()[1] for line in history[1:]] == ["good", "bad"]
    status = penstock(place, "control", "status", job_id, "bad", "-ojson")
    assert (status.exit_code, json.loads(status.stdout)["status"]) == (3, "REJECTED")
    local = penstock(place, "control", "history", place.service.checkpoint(job_id), "-ojson").stdout
    assert penstock(place, "control", "history", job_id, "-ojson").stdout == local
    shown = penstock(place, "control", "status", job_id, "good").stdout
    assert shown == penstock(place, "control", "status", place.service.checkpoint(job_id), "good").stdout
    refused(penstock(place, "control", "status", job_id, "nobody"), "No command 'nobody'")
    refused(penstock(place, "control", "send", job_id, "--kind=sing"), "sing")
    refused(
        penstock(place, "control", "send", job_id, "--kind=set", role=Role.VIEWER), "needs the role operator"
    )


def test_a_final_receipt_is_awaited(place: ServedRest) -> None:
    """The exit code shows its status; without one by the timeout it is 5."""
    job_id = with_control(place)
    checkpoint = place.service.checkpoint(job_id)
    send = ("control", "send", job_id, "--kind=pause", "--target=heat", "--wait")
    assert penstock(place, *send, "--timeout=0.1").exit_code == 5
    later = threading.Timer(
        0.5, lambda: write_receipts(checkpoint, 3, receipts("later", "DEGRADED", 3, degraded=[1]))
    )
    later.start()
    result = penstock(place, *send, "--id=later", "-ojson")
    later.join()
    assert result.exit_code == 4, result.output
    assert (json.loads(result.stdout)["id"], json.loads(result.stdout)["degraded"]) == ("later", [1])


def test_no_server_a_dead_one_and_a_wrong_token_are_told(place: ServedRest) -> None:
    """The message says what to do; no token is ever printed."""
    nobody = {"PENSTOCK_SERVER": "", "PENSTOCK_TOKEN": ""}
    home = f"--home={place.root}"
    refused(penstock(place, "list", home, **nobody), "Start one with penstock serve", 3)
    refused(penstock(place, "stop", "rooms", home, **nobody), "Start one with penstock serve", 3)
    wrong = penstock(place, "list", PENSTOCK_TOKEN="a-wrong-token")
    refused(wrong, "The token or cookie is missing or unknown")
    assert "a-wrong-token" not in wrong.stderr
    refused(penstock(place, "cancel", place.submit(), role=Role.VIEWER), "needs the role operator")
    place.end()
    dead = penstock(place, "list")
    refused(dead, f"No server answers at {place.url}", 3)
    assert place.environment()["PENSTOCK_TOKEN"] not in dead.stderr


def test_the_home_names_the_server(place: ServedRest) -> None:
    """No variable is needed."""
    token = place.environment()["PENSTOCK_TOKEN"]
    (place.root / "server.json").write_text(json.dumps({"url": place.url, "token": token}))
    nothing = {"PENSTOCK_SERVER": "", "PENSTOCK_TOKEN": ""}
    assert told(penstock(place, "list", f"--home={place.root}", "-ojson", **nothing)) == []


def completed(place: ServedRest, *words: str, **variables: str) -> set[str]:
    line = " ".join(("penstock", *words))
    asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    result = CliRunner().invoke(
        app, [], prog_name="penstock", env={**place.environment(), **asked, **variables}
    )
    return set(result.stdout.split())


def test_jobs_and_definitions_are_completed(place: ServedRest) -> None:
    """Completions come from the server that the command line names; without a server there are none, and no
    message.
    """
    job_id = place.submit(name="rooms")
    assert completed(place, "cancel", "ro") == {"rooms", job_id}
    assert completed(place, "stop", job_id[:-2]) == {job_id}
    assert completed(place, "submit", "s") == {"small"}
    assert completed(place, "run", "s") == set()
    assert completed(place, "cancel", "--server", "http://127.0.0.1:1", "ro") == set()
    place.end()
    assert completed(place, "cancel", "ro") == set()


def test_help_and_checkpoints_load_no_web_client(place: ServedRest) -> None:
    """So they are as fast as before."""
    checkpoint = make_checkpoint(place.root / "checkpoint")
    codes, modules = loaded_by(["--help"], ["control", "history", checkpoint])
    assert codes == [0, 0]
    assert not {"httpx", "fastapi", "sqlalchemy", "pyspark"} & modules


def test_metrics_are_shown(place: ServedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is tables, JSON, or continuous; none before the first micro-batch."""
    job_id = place.submit()
    empty = penstock(place, "metrics", job_id)
    assert (empty.exit_code, "has no metrics yet" in empty.stdout) == (0, True), empty.output
    ended = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
    metrics = BatchMetrics(
        job="rooms",
        job_id="run-1",
        batch=7,
        started=ended,
        ended=ended,
        duration_s=0.25,
        phases={"addBatch": 0.2},
        parallelism=2,
        cores=2,
        records_in={"[hits]": 10},
        lag={"[hits]": Lag(files=3, bytes=2048)},
        steps={"count": StepBatchMetrics(records=10, keys=3, state_bytes=4096)},
        totals=Totals(
            batches=8, records_in={"[hits]": 1234}, records_out={"tallies": 99}, step_records={"count": 1234}
        ),
    )
    place.service.checkpoint(job_id).mkdir(parents=True)
    writer = BatchMetricsWriter(place.service.checkpoint(job_id))
    writer.append(metrics)
    text = penstock(place, "metrics", job_id).stdout
    for part in ("[hits]", "1,234", "3 files 2.0 KiB", "4.0 KiB", "newest micro-batch  7"):
        assert part in text
    found = told(penstock(place, "metrics", job_id, "--window=10", "-ojson"))
    assert (found["batches"][0]["batch"], found["sinks"][0]["records"]) == (7, 99)
    refused(penstock(place, "metrics", job_id, "-oprometheus"), "at /metrics")
    refused(penstock(place, "metrics"), "Name a job")

    following = follow(place, "metrics", job_id, "--watch", "-ojson")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["batches"][0]["batch"] == 7
    writer.append(msgspec.structs.replace(metrics, batch=8))
    assert json.loads(following.stdout.readline())["batch"] == 8
    writer.close()
    following.kill()
    following.wait()


def test_a_folder_called_like_a_job_does_not_stand_in_its_way(
    place: ServedRest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's folder may have the job's name; only a checkpoint of that name takes precedence."""
    job_id = place.submit(name="rooms")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rooms" / "state").mkdir(parents=True)
    assert told(penstock(place, "metrics", "rooms", "-ojson"))["running"] is False
    assert f"The job {job_id} does not run" in penstock(place, "metrics", "rooms").stdout.replace("\n", " ")
    refused(penstock(place, "metrics", "attic"), "no job 'attic', and no checkpoint of that name")
    alone = penstock(place, "metrics", "rooms", f"--home={tmp_path}", PENSTOCK_SERVER="")
    refused(alone, "The folder rooms is not a checkpoint, and as a job: No server runs in", code=3)
    (tmp_path / "rooms" / "state").rmdir()
    Checkpoint(tmp_path / "rooms").begin(Lineage("abc", "attic", 8, 2, ("visits",)))
    assert "The job attic does not run" in penstock(place, "metrics", "rooms").stdout.replace("\n", " ")


def test_the_plan_of_a_job_is_shown(place: ServedRest) -> None:
    """It has the parts and their inputs, once a start has described them."""
    job_id = place.submit()
    assert told(penstock(place, "info", job_id, "-ojson"))["plan"] is None
    assert "step 0" not in penstock(place, "info", job_id).stdout
    place.begin(job_id)
    plan = told(penstock(place, "info", job_id, "-ojson"))["plan"]
    assert plan == place.ask("GET", f"/v1/jobs/{job_id}/plan", Role.VIEWER).json()
    lines = penstock(place, "info", job_id).stdout.splitlines()
    (step,) = (line.split() for line in lines if line.startswith("step "))
    assert step[1:4] == ["step", "0", "readings-0"]
    assert "set" in step[-1] or "set," in step
    (source,) = (line for line in lines if line.startswith("data stream") and "readings-0" in line)
    assert f"jsonl:{place.root / 'in'}" in source
    assert "in a micro-batch at most: readings-0 256.0 MiB" in lines


def test_advice_is_as_on_the_checkpoint(place: ServedRest) -> None:
    """It uses the definition's policy, if there is one."""
    place.define("scaled", "scaling:\n  max_tasks: 8")
    at = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
    for definition in ("small", "scaled"):
        job_id = place.submit(definition)
        checkpoint = place.begin(job_id).folder
        writer = BatchMetricsWriter(checkpoint)
        for batch in range(30):
            writer.append(
                metrics_of_batch(
                    batch,
                    at + dt.timedelta(seconds=batch),
                    0.9,
                    job="drawn",
                    job_id="drawn-1",
                    phases={"addBatch": 0.9},
                    cores=4,
                    records_in={"readings-0": 1000},
                    steps={"step 0": StepBatchMetrics(records=1000, keys=4)},
                    totals=Totals(batches=batch + 1, records_in={"readings-0": 1000 * (batch + 1)}),
                )
            )
        writer.close()
        found = told(penstock(place, "advise", job_id, "-ojson"))
        assert ("decision" in found) == (definition == "scaled")
        found.pop("decision", None)
        if definition == "small":
            assert found == told(penstock(place, "advise", checkpoint, "-ojson"))
            assert penstock(place, "advise", job_id).stdout == penstock(place, "advise", checkpoint).stdout
        else:
            assert "The policy would decide" in penstock(place, "advise", job_id).stdout
    refused(penstock(place, "advise", job_id, "--policy=x"), "--policy goes with a checkpoint")
