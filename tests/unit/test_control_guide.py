"""The guide of the control plane: what docs/control.md shows runs, decodes, and is what the code does."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from encoded_commands import command_to, commands
from google.protobuf import text_format
from guide_code import python_of

import penstock as ps
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command
from penstock.control.control_pb2 import Command as CommandMessage
from penstock.control.receipts import Receipt
from penstock.operators.handlers import BUILT_IN_KINDS
from penstock.testing.batch_runner import BatchRunner

GUIDE = Path(__file__).parents[2] / "docs" / "control.md"


def blocks(language: str) -> list[str]:
    """The blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def envelopes() -> list[dict[str, Any]]:
    found = [msgspec.json.decode(block) for block in blocks("json")]
    return [one for one in found if isinstance(one, dict) and "status" not in one]


def shown_receipt() -> Receipt:
    (found,) = [block for block in blocks("json") if '"status"' in block]
    return msgspec.json.decode(found, type=Receipt)


@pytest.fixture
def guide() -> Iterator[dict[str, Any]]:
    """The names that the guide's Python makes."""
    with python_of(GUIDE) as names:
        yield names


@pytest.fixture
def running(guide: dict[str, Any]) -> tuple[BatchRunner, dict[str, Any]]:
    """The guide's first job, with its names."""
    job = ps.Job("alarms")
    readings = job.data_stream("readings", schema=guide["Reading"], event_time="at")
    readings.key_by("room").process("alarms", guide["Alarms"]()).sink_to("alarms-out")
    made = BatchRunner(job, parallelism=2)
    made.now = dt.datetime(2026, 11, 21, 12, 0, 0, 250_000, dt.UTC)
    return made, guide


def test_the_python_of_the_guide_runs(guide: dict[str, Any]) -> None:
    """And the job it describes is whole."""
    guide["job"].check()
    assert [step.step for step in guide["job"].graph.steps()] == ["alarms", "rules"]


def test_the_envelopes_of_the_guide_are_commands() -> None:
    """Both forms of the first one are the same command, and it has every field but one."""
    first, *others = envelopes()
    decoded = decode_command(msgspec.json.encode(first))
    (text,) = blocks("textproto")
    message = text_format.Parse(text, CommandMessage())
    also = decode_command(message.SerializeToString(), "protobuf")
    assert msgspec.json.decode(also.payload) == msgspec.json.decode(decoded.payload)
    plain = {"payload": msgspec.Raw(b"null")}
    assert msgspec.structs.replace(also, **plain) == msgspec.structs.replace(decoded, **plain)
    for other in others:
        decode_command(msgspec.json.encode(other))
    assert {name for one in (first, *others) for name in one} == {
        field.name for field in msgspec.structs.fields(Command)
    }


def test_the_tables_name_every_field_and_kind() -> None:
    """What is added to the code is missed in the guide."""
    page = GUIDE.read_text()
    for field in msgspec.structs.fields(Command):
        assert f"| `{field.name}` |" in page
    for kind in BUILT_IN_KINDS:
        assert f"| `{kind}` |" in page
    for field in msgspec.structs.fields(Receipt):
        assert f"`{field.name}`" in page


def test_the_receipt_of_the_guide_is_what_the_job_writes(running: tuple[BatchRunner, dict[str, Any]]) -> None:
    """The commands before it are those of the page."""
    job, _ = running
    limit = command_to("alarms", "set", {"limit": 25}, key=5)
    raised = command_to("alarms", "raise-limit", 1, key=[5, 6], id="41d0", issued_by="ann")
    result = job.run(commands(limit, raised))
    assert msgspec.structs.replace(result.receipts[-1], batch=17) == shown_receipt()


def test_the_trace_of_the_guide_is_what_the_job_answers(running: tuple[BatchRunner, dict[str, Any]]) -> None:
    """For two rooms with limits and four readings."""
    job, guide = running
    sent = commands(command_to("alarms", "set", {"limit": 25}, key=[5, 6]), command_to(None, "trace"))
    readings = [guide["Reading"](5, 20.0 + n, job.now) for n in range(4)]
    result = job.run({**sent, "readings": [("r", readings)]})
    (shown,) = [found for block in blocks("json") if isinstance(found := msgspec.json.decode(block), list)]
    assert msgspec.json.decode(result.receipts[-1].details) == shown


def test_an_event_time_of_the_guide_changes_the_records_behind_it(
    running: tuple[BatchRunner, dict[str, Any]],
) -> None:
    """The correction of the page lowers what was measured from noon on; the base holds before."""
    job, guide = running
    (command,) = [one for one in envelopes() if "effective_at" in one]
    job.run(commands(command_to("alarms", "set", {"limit": 20}, key="*"), msgspec.json.encode(command)))
    noon = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    times = [noon, noon - dt.timedelta(seconds=1)]
    result = job.run({"readings": [("r", [guide["Reading"](1, 30.0, at) for at in times])]})
    assert [alarm.celsius for alarm in result.output("alarms-out")] == [29.6, 30.0]


def test_the_other_steps_of_the_guide_work(guide: dict[str, Any]) -> None:
    """A season raises the limits of the rooms that are there; rules hold from their time on, for any room."""
    noon = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    job = ps.Job("seasons")
    readings = job.data_stream("readings", schema=guide["Reading"], event_time="at")
    readings.key_by("room").process("alarms", guide["SeasonalAlarms"]()).sink_to("alarms-out")
    rules = job.control_stream("rules", schema=guide["Rule"], effective_at="since", version="version")
    by_rules = readings.key_by("room").connect(rules.broadcast()).process("rules", guide["Rules"]())
    by_rules.stamp_control_version().sink_to("rule-alarms")
    running = BatchRunner(job, parallelism=2)
    season = {"name": "summer", "since": "2026-06-01"}
    commands = [
        {"id": "a", "kind": "set", "target": {"step": "alarms", "keys": [1, 2]}, "payload": {"limit": 20}},
        {"id": "b", "kind": "set-limit", "target": {"step": "alarms", "all": True}, "payload": 22},
        {"id": "c", "kind": "new-season", "target": {"step": "alarms"}, "payload": season},
        {"id": "d", "kind": "report", "target": {"step": "alarms"}},
    ]
    result = running.run(
        {
            "commands": [("c", list(map(msgspec.json.encode, commands)))],
            "rules": [("r", [guide["Rule"]("a", 30.0, version=4), guide["Rule"]("b", 25.0, noon, 7)])],
            "readings": [
                ("x", [guide["Reading"](room, 31.0, noon - dt.timedelta(hours=room)) for room in (0, 3)])
            ],
        }
    )
    assert {receipt.status for receipt in result.receipts} == {"ACCEPTED", "VALIDATED", "APPLIED"}
    assert msgspec.json.decode(result.receipts[-1].details) == [[1, 24.0], [2, 24.0]]
    assert sorted(alarm.room for alarm in result.output("alarms-out")) == [1, 2]
    found = {a.room: (a.limit, a.control_version) for a in result.output("rule-alarms")}
    assert found == {0: (25.0, 7), 3: (30.0, 4)}
