"""Command payloads described in words and by examples, so that people can write one without reading the code."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import COUNTS_FILE
from penstock.commands.command_catalog import CONTROL_FILE, StepEntry, read_command_catalog
from penstock.commands.payloads import payload_key, payload_of_type
from penstock.commands.settings_in_force import settings_in_force
from penstock.jobs.compile import compile_job
from penstock.jobs.settings import RunSettings
from penstock.server.dashboard.cli_equivalents import SentControl
from penstock.server.dashboard.control_page import command_help, setting_rows


class Mode(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass
class Limits:
    low: float
    high: float | None = None
    mode: Mode = Mode.FAST
    tags: list[str] | None = None


class Node(msgspec.Struct):
    name: str
    below: list[Node] = []


@pytest.mark.parametrize(
    ("kind", "words", "example"),
    [
        (int, "int", "1"),
        (bool, "true or false", "true"),
        (None, "", ""),
        (Any, "any JSON", "null"),
        (list[int], "[int]", "[1]"),
        (dict[str, float], "{name: float}", '{"name":1.5}'),
        (dict[int, float], "{name: float}", ""),
        (dt.datetime, "text", ""),
        (tuple[int, str], "[int, text]", '[1,"text"]'),
        (
            Limits,
            '{low: float, high?: float or null, mode?: "fast" or "slow", tags?: [text] or null}',
            '{"low":1.5,"mode":"fast"}',
        ),
    ],
)
def test_a_type_is_told_with_an_example(kind: Any, words: str, example: str) -> None:
    """The type itself accepts the example."""
    found = payload_of_type(kind)
    assert (found.type, found.example) == (words, example)
    if example:
        msgspec.json.decode(example, type=kind)


def test_a_type_that_contains_itself_comes_to_an_end() -> None:
    """Recursive types, such as trees, have a finite description."""
    found = payload_of_type(Node)
    assert found.type.startswith("{name: text, below?: [{name: text, below?: [")
    assert msgspec.json.decode(found.example, type=Node).name == "text"


class Watch(ps.ProcessFunction):
    limit = ps.ValueState(int)
    seen = ps.ListState(str)
    factor = ps.Setting(float, 2.5)
    mode = ps.Setting(Mode, Mode.SLOW)
    about = ps.Setting(StringValue, StringValue(value="x"))

    @ps.on_command("limits")
    def set_limits(self, limits: Limits, ctx: ps.CommandContext) -> None: ...

    @ps.on_command("reset", scope="step")
    def reset(self, payload: None, ctx: ps.CommandContext) -> None: ...

    def process_record(self, hit: Any, ctx: ps.Context) -> Iterator[Any]:
        yield hit


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return the checkpoint of a job that has started."""
    job = ps.Job("job")
    hits = job.data_stream("hits", schema="page INT")
    hits.key_by("page").process("watch", Watch(), output="page INT").sink_to("out")
    (tmp_path / "hits").mkdir()
    bindings = {"hits": f"jsonl:{tmp_path / 'hits'}", "out": f"jsonl:{tmp_path / 'out'}"}
    checkpoint = Checkpoint.open(str(tmp_path / "checkpoint"))
    bound = compile_job(job, RunSettings(bindings=bindings), checkpoint)
    checkpoint.save(CONTROL_FILE, bound.control)
    return checkpoint


@pytest.fixture
def entry(checkpoint: Checkpoint) -> StepEntry:
    """Return the entry of the job's step in the checkpoint."""
    return read_command_catalog(checkpoint.folder).steps["watch"]


def test_the_control_entry_has_the_payloads_of_all_commands(entry: StepEntry) -> None:
    """Payloads of `set` are listed by scope, keys or step; every accepted kind is listed."""
    found = entry.payloads
    assert set(found) == {*entry.kinds, "set settings"}
    assert found["limits"] == payload_of_type(Limits)
    assert (found["set"].type, found["set"].example) == ("some of {limit: int, seen: [text]}", '{"limit":1}')
    settings = found[payload_key("set", "step")]
    assert settings.type == 'some of {factor: float, mode: "fast" or "slow", about: any JSON}'
    assert settings.example == '{"factor":1.5}'
    assert found["reset"].type == found["pause"].type == ""
    assert entry.defaults == {"factor": 2.5, "mode": "slow", "about": 'value: "x"\n'}


@pytest.mark.parametrize(
    ("kind", "target", "text", "example"),
    [
        (
            "limits",
            "*",
            "For watch/KEY, watch/KEY,KEY, watch/*. Payload: {low: float,",
            '{"low":1.5,"mode":"fast"}',
        ),
        ("set", "watch/3", "watch/*, watch. Payload: some of {limit: int, seen: [text]}.", '{"limit":1}'),
        ("set", "watch", "Payload: some of {factor: float, mode:", '{"factor":1.5}'),
        ("reset", "watch", "For watch, *. No payload.", ""),
        ("pause", "*", "For watch, *. No payload.", ""),
    ],
)
def test_the_form_helps_with_the_chosen_command(
    checkpoint: Checkpoint, kind: str, target: str, text: str, example: str
) -> None:
    """For the kind and target typed so far, the form shows the scope, the payload and a valid example."""
    found = command_help(read_command_catalog(checkpoint.folder), SentControl(kind, target, None))
    assert found is not None
    assert text in found.text
    assert found.example == example


def test_the_form_says_nothing_of_what_no_step_takes(checkpoint: Checkpoint) -> None:
    """The form stays silent while somebody is still typing."""
    assert command_help(read_command_catalog(checkpoint.folder), SentControl("lim", "*", None)) is None


def test_settings_in_force_are_defaults_and_what_was_set(checkpoint: Checkpoint) -> None:
    """A setting that takes effect at an event time shows it; settings that the code no longer declares are
    left out.
    """
    assert settings_in_force(checkpoint.folder) == {
        "watch": {"factor": 2.5, "mode": "slow", "about": 'value: "x"\n'}
    }
    later = {"factor from event time": [["2026-12-01", 4.5]], "gone": 1}
    checkpoint.save(COUNTS_FILE, {"batch": 3, "settings": {"watch": {"factor": 3.5, **later}}})
    found = settings_in_force(checkpoint.folder)
    assert found["watch"].pop("factor from event time") == [["2026-12-01", 4.5]]
    assert found["watch"].pop("about")
    assert found == {"watch": {"factor": 3.5, "mode": "slow"}}
    assert [(row["step"], row["setting"], row["value"]) for row in setting_rows(found)] == [
        ("watch", "factor", "3.5"),
        ("watch", "mode", '"slow"'),
    ]
