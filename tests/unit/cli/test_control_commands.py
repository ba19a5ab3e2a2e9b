"""The commands `penstock control`: their output and exit codes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from control_checkpoint import make_checkpoint, receipts, write_receipts
from loaded_modules import loaded_by
from typed_commands import refused, typed
from typer.testing import CliRunner

from penstock.cli import app
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint with one applied, one rejected and one degraded command."""
    made = make_checkpoint(tmp_path / "checkpoint")
    write_receipts(made, 1, receipts("good", "APPLIED", 1, keys=2, key_groups=1, details="[1]"))
    write_receipts(made, 2, receipts("bad", "REJECTED", 2, reason="[no] such state"))
    write_receipts(made, 5, receipts("ugly", "DEGRADED", 5, degraded=[3, 4], reason="ValueError: 13"))
    return made


def control(*arguments: object, **environment: str) -> Result:
    return typed("control", *arguments, **environment)


def sent(checkpoint: Path) -> list[Command]:
    # A file still being written has a hidden name, which the job ignores.
    paths = sorted(p for p in (checkpoint / "commands").iterdir() if not p.name.startswith("."))
    return [decode_command(path.read_bytes()) for path in paths]


def test_send_writes_the_command_and_prints_its_id(checkpoint: Path) -> None:
    """All options are in it; the payload is on one line, with numbers as typed."""
    place = checkpoint.parent / "payload.json"
    place.write_text('{\n  "limit": 1.50\n}\n')
    before = time.time()
    first = control("send", checkpoint, "--kind=set", "--target=heat/1,2", f"--json-file={place}")
    second = control(
        "send",
        checkpoint,
        "--kind=pause",
        "--id=x/y",
        "--version=3",
        "--issued-by=ann",
        "--effective-at=2026-01-01T00:00:00+01:00",
        "--expires-in=60",
        "-ojson",
    )
    one, two = sent(checkpoint)
    assert (first.exit_code, first.stdout) == (0, f"{one.id}\n")
    assert len(one.id) == 32
    assert (one.target.keys, bytes(one.payload)) == ([1, 2], b'{"limit":1.50}')
    assert "@" in one.issued_by
    assert one.issued_at is not None
    assert abs(one.issued_at.timestamp() - before) < 60
    assert json.loads(second.stdout) == {
        "id": "x/y",
        "status": "SENT",
        "kind": "pause",
        "target": "*",
        "version": 3,
        "issued_by": "ann",
        "commands": f"jsonl:{checkpoint / 'commands'}",
    }
    assert (two.id, two.version, two.issued_by, bytes(two.payload)) == ("x/y", 3, "ann", b"null")
    assert two.effective_at is not None
    assert two.effective_at.isoformat() == "2026-01-01T00:00:00+01:00"
    assert two.issued_at is not None
    assert two.expires_at is not None
    assert (two.expires_at - two.issued_at).total_seconds() == 60


def test_keys_and_the_payload_may_be_json_and_come_from_stdin(checkpoint: Path) -> None:
    """This serves keys of several fields, and payloads from programs."""
    arguments = ["send", str(checkpoint), "--kind=set", "--target=pairs", '--keys=[[1,"b"]]', "--json-file=-"]
    result = CliRunner().invoke(app, ["control", *arguments], input='{"limit": 5}')
    assert result.exit_code == 0
    (command,) = sent(checkpoint)
    assert (command.target.key, bytes(command.payload)) == ([1, "b"], b'{"limit":5}')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind=explode"], "it takes set, limit, pause"),
        (["--kind=set", "--target=cool/1"], "heat, names, pairs"),
        (["--kind=set"], "it takes it for STEP/KEY"),
        (["--kind=set", "--target=heat/1", "--json={"], "The payload of --json is not valid JSON"),
        (["--kind=set", "--target=heat/1", "--json=NaN"], "not valid JSON"),
        (["--kind=set", "--target=heat/1", "--json=1", "--json-file=x"], "Use one of them"),
        (["--kind=set", "--target=heat/1", "--json-file=/nowhere"], "cannot be read"),
        (["--kind=pause", "--effective-at=noon"], "not an ISO 8601 time"),
        (["--kind=pause", "--effective-at=2026-01-01T00:00:00"], "no time zone"),
        (["--kind=pause", "--expires-at=2020-01-01T00:00:00Z"], "is in the past"),
        (["--kind=pause", "--expires-in=-1"], "is in the past"),
        (["--kind=pause", "--expires-in=1e300"], "too far away to be a date"),
        (["--kind=pause", "--expires-in=1", "--expires-at=2120-01-01T00:00:00Z"], "Use one of them"),
        (["--kind=pause", "--id="], "the id is empty"),
        (["--kind=pause", f"--id={'x' * 129}"], "longer than 128 bytes"),
        (["--kind=pause", "--version=-1"], "the version is negative"),
        (["--kind=pause", "-Dreadings=jsonl:x"], "Only -D commands=URI"),
        (["--kind=pause", "-Dcommands"], "not of the form NAME=URI"),
        (["--kind=pause", "-Dcommands=socket://h:1"], "sends to the job itself"),
    ],
)
def test_wrong_commands_are_refused_at_once(checkpoint: Path, arguments: list[str], said: str) -> None:
    """The error is one sentence, and nothing is sent."""
    refused(control("send", checkpoint, *arguments), said)
    assert sent(checkpoint) == []


def test_a_broker_that_does_not_answer_is_not_taken_for_a_rejection(checkpoint: Path) -> None:
    """Exit code 3 stands for a receipt; a command that could not be sent gives 1."""
    uri = "-Dcommands=amqp://guest:secret@127.0.0.1:1/%2F/q"
    result = control("send", checkpoint, "--kind=pause", uri)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no RabbitMQ answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(("final", "code"), [("APPLIED", 0), ("REJECTED", 3), ("DEGRADED", 4)])
def test_waiting_ends_with_the_final_receipt(checkpoint: Path, final: str, code: int) -> None:
    """Its status gives the exit code, each status is shown, and the receipt is printed with its details."""

    def answer() -> None:
        while not sent(checkpoint):
            time.sleep(0.01)
        (command,) = sent(checkpoint)
        write_receipts(checkpoint, 9, receipts(command.id, final, 9, details='{"was":5}'))

    job = threading.Thread(target=answer)
    job.start()
    result = control("send", checkpoint, "--kind=pause", "--wait", "-ojson")
    job.join()
    assert result.exit_code == code
    found = json.loads(result.stdout)
    assert (found["id"], found["status"]) == (sent(checkpoint)[0].id, final)
    assert (found["batch"], found["details"]) == (9, {"was": 5})
    assert "ACCEPTED" in result.stderr
    assert final in result.stderr


def test_waiting_prints_what_was_replied(checkpoint: Path) -> None:
    """It follows the id, as in the documentation of a trace."""
    write_receipts(checkpoint, 9, receipts("asked", "APPLIED", 9, details='[{"step":"heat","keys":2}]'))
    result = control("send", checkpoint, "--kind=pause", "--wait", "--id=asked")
    assert (result.exit_code, result.stdout) == (0, 'asked\n[{"step":"heat","keys":2}]\n')


def test_waiting_gives_up_in_time_and_the_command_stays_sent(checkpoint: Path) -> None:
    """The exit code is 5, and the message says so."""
    result = control("send", checkpoint, "--kind=pause", "--wait", "--timeout=0.1", "-ojson", "--id=later")
    assert result.exit_code == 5
    assert json.loads(result.stdout)["status"] == "SENT"
    assert "The command stays sent" in result.stderr
    text = control("status", checkpoint, "later")
    assert (text.exit_code, text.stdout) == (0, "later: sent, no receipt yet\n")
    found = control("status", checkpoint, "later", "-ojson")
    assert json.loads(found.stdout) == {"id": "later", "status": "SENT", "receipts": []}


def test_an_id_that_was_sent_before_ends_with_its_old_receipt(checkpoint: Path) -> None:
    """So scripts may repeat commands."""
    result = control("send", checkpoint, "--kind=pause", "--wait", "--id=bad")
    assert (result.exit_code, result.stdout) == (3, "bad\n")
    assert "[no] such state" in result.stderr


@pytest.mark.parametrize(("command_id", "code"), [("good", 0), ("bad", 3), ("ugly", 4)])
def test_status_tells_the_story_of_a_command(checkpoint: Path, command_id: str, code: int) -> None:
    """It is shown as text or JSON; the checkpoint is an argument or in the variable."""
    text = control("status", checkpoint, command_id)
    assert text.exit_code == code
    assert text.stdout.startswith(f"{command_id}  set heat/1  by ann\n2026-01-02T03:04:")
    found = control("status", command_id, "-ojson", PENSTOCK_CHECKPOINT=str(checkpoint))
    assert found.exit_code == code
    history: dict[str, Any] = json.loads(found.stdout)
    assert history["id"] == command_id
    assert history["status"] == history["receipts"][-1]["status"]
    if command_id == "good":
        assert history["receipts"][-1]["details"] == [1]
        assert "key groups 1, keys 2" in text.stdout
    elif command_id == "bad":
        assert "[no] such state" in text.stdout
    else:
        assert "degraded key groups 3, 4  ValueError: 13" in text.stdout


def test_an_unknown_id_and_a_missing_checkpoint_are_refused(checkpoint: Path) -> None:
    """The message says what to do."""
    refused(control("status", checkpoint, "nobody"), "The id 'nobody' is unknown")
    refused(control("status", "good"), "PENSTOCK_CHECKPOINT")
    refused(control("status", checkpoint, "good", "bad"), "Got 3 arguments")
    refused(control("history"), "Name a job")
    refused(control("send", "--kind=pause"), "Name a job")
    for command in (["send", "--kind=pause"], ["history"], ["status", "good"]):
        result = control(*command, PENSTOCK_CHECKPOINT=str(checkpoint.parent))
        refused(result, "is not a checkpoint of a job that was started")


def test_an_argument_wins_over_the_variable(checkpoint: Path) -> None:
    """For all three commands."""
    other = str(checkpoint.parent / "other")
    assert control("status", checkpoint, "good", PENSTOCK_CHECKPOINT=other).exit_code == 0
    assert control("history", checkpoint, PENSTOCK_CHECKPOINT=other).exit_code == 0
    assert control("send", checkpoint, "--kind=pause", PENSTOCK_CHECKPOINT=other).exit_code == 0
    assert control("history", PENSTOCK_CHECKPOINT=str(checkpoint)).exit_code == 0


def test_history_lists_the_newest_commands_last(checkpoint: Path) -> None:
    """As a table, or one object a line."""
    lines = control("history", checkpoint).stdout.splitlines()
    assert lines[0].split()[:4] == ["time", "id", "kind", "target"]
    assert [line.split()[1] for line in lines[1:]] == ["good", "bad", "ugly"]
    assert lines[2].rstrip().endswith("[no] such state")
    found = [
        json.loads(line) for line in control("history", checkpoint, "--last=2", "-ojson").stdout.splitlines()
    ]
    assert [(receipt["id"], receipt["status"]) for receipt in found] == [
        ("bad", "REJECTED"),
        ("ugly", "DEGRADED"),
    ]
    assert control("history", checkpoint, "--step=names").stdout == ""
    assert control("history", checkpoint, "--kind=set", "--step=heat", "-ojson").stdout.count("\n") == 3


def test_no_command_loads_spark(checkpoint: Path) -> None:
    """Importing it would take a second."""
    codes, modules = loaded_by(
        ["control", "send", checkpoint, "--kind=pause", "--id=x"],
        ["control", "status", checkpoint, "x"],
        ["control", "history", checkpoint],
    )
    assert codes == [0, 0, 0]
    assert "pyspark" not in modules


def test_a_job_without_steps_takes_no_commands(checkpoint: Path) -> None:
    """And send says so."""
    entry = {"job": "copy", "commands": "", "steps": {}}
    (checkpoint / "control.json").write_bytes(msgspec.json.encode(entry))
    refused(control("send", checkpoint, "--kind=pause"), "'copy' has no keyed step")
