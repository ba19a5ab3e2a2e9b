"""Checks the end of a life: outputs, receipts, dead letters and state must equal a model's."""

from __future__ import annotations

import collections
import csv
import datetime as dt
import json
from typing import Any

import pyarrow.parquet as pq
from life import Life

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_state import read_described
from penstock.errors import CheckpointError, PenstockError
from penstock.runtime.cuts import batch_numbers
from penstock.savepoints.captured_tables import FrozenEntries
from penstock.savepoints.snapshot_capture import read_step
from penstock.state.group_table import KEY_COLUMN
from penstock.state.key_index import key_values
from penstock.state.slot_tables import SlotTables

__all__ = ["refusal_fault", "violations"]

_LONG_S = 3600.0
_STATUSES = ["ACCEPTED", "VALIDATED", "APPLIED"]
_REMEDIES = (
    "Restore ",
    "restore ",
    "delete ",
    "Delete ",
    "Start ",
    "start ",
    "Choose ",
    "--",
    "Let only one",
)


def refusal_fault(error: BaseException) -> str | None:
    """Return what is wrong with an error that ended a run after a power loss; None for a refusal with a remedy."""
    if not isinstance(error, CheckpointError):
        return f"it ended with {type(error).__name__}: {error}"
    if not any(remedy in str(error) for remedy in _REMEDIES):
        return f"the refusal names no remedy: {error}"
    return None


def violations(life: Life) -> list[str]:
    """Return all violations, as sentences."""
    scenario = life.scenario
    adjusted: dict[str, int] = collections.defaultdict(int)
    for command in scenario.commands:
        if command["kind"] == "adjust":
            for key in command["target"]["keys"]:
                adjusted[key] += command["payload"]
    expected = scenario.job.expected(scenario.feed, adjusted)
    # By then every open transaction of a killed process has timed out.
    life.brokers.sleep(_LONG_S)
    found: list[str] = []
    for sink, rows in expected.in_order.items():
        got = _by_key(_rows(life, sink))
        if not scenario.is_exactly_once(sink):
            got = {key: list(dict.fromkeys(told)) for key, told in got.items()}
        found += _differences(sink, rows, got)
    for sink, wanted in expected.sets.items():
        found += _set_differences(life, sink, wanted, _rows(life, sink))
    found += _receipt_differences(life)
    letters = len(_dead_letters(life))
    if letters != expected.dead_letters:
        found.append(f"{letters} dead letters in place of {expected.dead_letters}")
    if expected.state:
        try:
            held = _state(life)
        except PenstockError as e:
            return [*found, f"the state cannot be read: {e}"]
        for name, wanted in expected.state.items():
            if held.get(name, {}) != wanted:
                found.append(f"the state {name} is {held.get(name, {})} in place of {wanted}")
    return found


def _rows(life: Life, sink: str, form: str | None = None) -> list[dict[str, Any]]:
    """Return all records in a folder, in order of its files."""
    if sink in life.scenario.topics:
        return _messages(life, sink)
    form = form or life.scenario.form
    found: list[dict[str, Any]] = []
    for path in sorted((life.root / "out" / sink).glob(f"part-*.{form}")):
        if form == "jsonl":
            found += [json.loads(line) for line in path.read_text().splitlines()]
        elif form == "csv":
            with path.open(newline="") as file:
                found += [
                    {
                        name: int(value) if value.lstrip("-").isdecimal() else value
                        for name, value in row.items()
                    }
                    for row in csv.DictReader(file)
                ]
        else:
            found += pq.read_table(path).to_pylist()
    return found


def _dead_letters(life: Life) -> list[Any]:
    """Return the dead letters, deduplicated where their topic may repeat them."""
    rows = _rows(life, "dead-letters", "jsonl")
    if life.scenario.is_exactly_once("dead-letters"):
        return rows
    return list({json.dumps(row, sort_keys=True) for row in rows})


def _messages(life: Life, topic: str) -> list[dict[str, Any]]:
    """Return what a read_committed consumer finds in a topic."""
    state = life.brokers.state
    return [
        json.loads(value)
        for number in range(len(state.topics[topic].partitions))
        for _, (_, value) in state.read(topic, number, 0, state.end_of(topic, number))
    ]


def _by_key(rows: list[dict[str, Any]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = collections.defaultdict(list)
    for row in rows:
        values = tuple(row.values())
        found[values[0]].append(values)
    return dict(found)


def _differences(sink: str, wanted: dict[Any, list[Any]], found: dict[Any, list[Any]]) -> list[str]:
    return [
        f"the sink {sink} has of {key!r} {found.get(key)} in place of {wanted.get(key)}"
        for key in sorted({*wanted, *found}, key=str)
        if wanted.get(key) != found.get(key)
    ]


def _set_differences(life: Life, sink: str, wanted: list[Any], rows: list[dict[str, Any]]) -> list[str]:
    read = {
        "doubled": lambda row: (row["room"], row["value"]),
        "sums": lambda row: (row["room"], _minute(row["window_start"]), row["value"]),
        "reminders": lambda row: row["room"],
    }[sink]
    ours, theirs = collections.Counter(wanted), collections.Counter(map(read, rows))
    if not life.scenario.is_exactly_once(sink):
        theirs = collections.Counter({row: min(count, ours[row] or 1) for row, count in theirs.items()})
    if ours == theirs:
        return []
    return [f"the sink {sink} lacks {dict(ours - theirs)} and has {dict(theirs - ours)} too much"]


def _minute(text: Any) -> str:
    at = text if isinstance(text, dt.datetime) else dt.datetime.fromisoformat(str(text))
    return at.astimezone(dt.UTC).isoformat()


def _receipt_differences(life: Life) -> list[str]:
    """Check that each command has each of its receipts once."""
    told: dict[str, list[str]] = collections.defaultdict(list)
    for checkpoint in {run.checkpoint for run in life.scenario.runs}:
        for path in sorted((life.root / checkpoint / "receipts").glob("*.jsonl")):
            for line in path.read_text().splitlines():
                receipt = json.loads(line)
                told[receipt["id"]].append(receipt["status"])
    found = _untold(life, "in the checkpoint", told)
    if "receipts" in life.scenario.topics:
        sent: dict[str, list[str]] = collections.defaultdict(list)
        for receipt in _messages(life, "receipts"):
            sent[receipt["id"]].append(receipt["status"])
        if not life.scenario.is_exactly_once("receipts"):
            sent = {key: list(dict.fromkeys(statuses)) for key, statuses in sent.items()}
        found += _untold(life, "in their topic", sent)
    return found


def _untold(life: Life, where: str, told: dict[str, list[str]]) -> list[str]:
    return [
        f"the command {command['id']} has {where} the receipts {told.get(command['id'])} in place of {_STATUSES}"
        for command in life.scenario.commands
        if told.get(command["id"]) != _STATUSES
    ]


def _state(life: Life) -> dict[str, dict[Any, Any]]:
    """Return the state after the last micro-batch, by step and state name."""
    checkpoint = Checkpoint(life.root / life.scenario.runs[-1].checkpoint)
    newest = max(batch_numbers(checkpoint.spark_folder / "commits"), default=-1)
    state = read_described(checkpoint.folder)
    found: dict[str, dict[Any, Any]] = {}
    for name, step in state.steps.items():

        def take(number: int, entries: dict[str, bytes], name: str = name, step: Any = step) -> list[bytes]:
            tables = SlotTables(step.schema, FrozenEntries(entries))
            for table in tables.tables.values():
                rows = table.all_rows()
                for column in step.states:
                    held = found.setdefault(f"{name}/{column}", {})
                    keys = key_values(rows.column(KEY_COLUMN))
                    for key, value in zip(keys, rows.column(column).to_pylist(), strict=True):
                        if value is not None:
                            held[key] = value
            return []

        read_step(None, checkpoint, newest, step.node, take)  # type: ignore[arg-type]
    return found
