"""`exchange` and `select`: vectorised code treats each record as code for single records does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing.batch_runner import BatchRunner


@dataclass
class Reading:
    sensor: str
    level: int
    note: str
    share: float


@dataclass
class Found:
    """The states of a sensor as a record finds them."""

    sensor: str
    level: int | None
    note: str | None
    share: float | None
    whole: str | None


@dataclass
class Held:
    level: int
    note: str | None


READINGS = st.builds(
    Reading,
    st.sampled_from("abc"),
    st.integers(-2, 2),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from([0.0, -0.0, 1.5, -1e308]),
)
BATCHES = st.lists(st.lists(READINGS, max_size=8), max_size=4)


class States(ps.ProcessFunction):
    level = ps.ValueState(int)
    note = ps.ValueState(str, ttl=ps.Ttl(dt.timedelta(days=1)))
    share = ps.ValueState(float)
    whole = ps.ValueState(Held)


class ByRecord(States):
    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Found]:
        whole = self.whole.get()
        yield Found(
            reading.sensor, self.level.get(), self.note.get(), self.share.get(), str(whole) if whole else None
        )
        self.level.set(reading.level)
        self.note.set(reading.note)
        self.share.set(reading.share)
        self.whole.set(Held(reading.level, reading.note or None))


def text_of(present: bool, level: int, note: str | None) -> str | None:
    return str(Held(level, note)) if present else None


class ByColumn(States):
    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        keys = ctx.key_indices
        given = {
            name: records.column(name).to_numpy(zero_copy_only=False) for name in ("level", "note", "share")
        }
        level = self.level.exchange(keys, given["level"])
        note = self.note.exchange(keys, given["note"])
        share = self.share.exchange(keys, given["share"])
        notes = [one or None for one in given["note"]]
        whole = self.whole.exchange(keys, {"level": given["level"], "note": notes})
        return ctx.select(
            np.ones(len(records), bool),
            "sensor",
            level=pa.array(level.values, mask=~level.present),
            note=note.values,
            share=pa.array(share.values, mask=~share.present),
            whole=[
                text_of(*one)
                for one in zip(whole.present, whole["level"].tolist(), whole["note"], strict=True)
            ],
        )


def job_of(function: ps.ProcessFunction) -> BatchRunner:
    job = ps.Job("j", key_groups=2)
    readings = job.data_stream("readings", schema=Reading)
    readings.key_by("sensor").process("step", function, output=Found).sink_to("out")
    return BatchRunner(job)


def shown(found: Found) -> str:
    """Return the value as text, in which 0.0 and -0.0 differ."""
    return str(asdict(found))


@given(BATCHES)
def test_exchange_is_get_and_set_for_each_record(batches: list[list[Reading]]) -> None:
    """`exchange` finds and leaves what `get` and `set` per record would: numbers, text, records, expiring
    values.
    """
    one, other = job_of(ByRecord()), job_of(ByColumn())
    for readings in batches:
        inputs = {"readings": [("r", readings)]} if readings else {}
        results = [job.run(inputs) for job in (one, other)]
        assert all(not result.dead_letters for result in results)
        for sensor in "abc":
            by_record, by_column = (
                [shown(found) for found in result.output("out") if found.sensor == sensor]
                for result in results
            )
            assert by_column == by_record


class Untouched(ps.ProcessFunction):
    level = ps.ValueState(int)

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> None:
        before = self.level.exchange(ctx.key_indices, records.column("level").to_numpy())
        with pytest.raises(ValueError, match="read-only"):
            before.values[0] = 3


def test_what_an_exchange_finds_cannot_be_changed() -> None:
    """The arrays that `exchange` returns are read-only, like the columns of a state."""
    job = ps.Job("j", key_groups=2)
    job.data_stream("readings", schema=Reading).key_by("sensor").process("step", Untouched())
    result = BatchRunner(job).run({"readings": [("r", [Reading("a", 1, "", 0.0)])]})
    assert result.dead_letters == []


class Selected(ps.ProcessFunction):
    side_outputs = {"rest": "level BIGINT, half DOUBLE"}

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        levels = records.column("level").to_numpy()
        rows = np.flatnonzero(levels > 0)[::-1]
        ctx.side_output("rest", *ctx.select(levels <= 0, "level", half=levels[levels <= 0] / 2))
        return ctx.select(rows, "sensor", "note", level=levels[rows].tolist())


def test_selected_rows_keep_fields_and_get_columns() -> None:
    """`select` takes row numbers (in that order) or a mask; columns may be arrays or lists, even without rows."""
    job = ps.Job("j", key_groups=1)
    step = (
        job.data_stream("readings", schema=Reading)
        .key_by("sensor")
        .process("step", Selected(), output="sensor STRING, note STRING, level INT")
    )
    step.sink_to("out")
    step.side_output("rest").sink_to("rest")
    running = BatchRunner(job)
    readings = [Reading("a", level, f"note {level}", 0.0) for level in (1, -1, 2, 3, 0)]
    result = running.run({"readings": [("r", readings)]})
    assert [(one.sensor, one.note, one.level) for one in result.output("out")] == [
        ("a", "note 3", 3),
        ("a", "note 2", 2),
        ("a", "note 1", 1),
    ]
    assert [(one.level, one.half) for one in result.output("rest")] == [(-1, -0.5), (0, 0.0)]
    assert running.run({"readings": [("r", readings[1:2])]}).output("out") == []
