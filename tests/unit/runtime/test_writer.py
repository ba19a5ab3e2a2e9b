"""Writing: a task finishes all of its sinks or aborts them, and reports what it wrote and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.records.schemas import record_type
from penstock.runtime.packed_rows import DEAD_LETTERS, PackedRow, counts_row, packed_batches, to_bytes
from penstock.runtime.plan import JobPlan, emission_destination
from penstock.runtime.writer import REPORT_SCHEMA, Forwarder, Writer, unpacked_rows
from penstock.testing.memory_sinks import MemorySink

KIND = record_type("number BIGINT")


def plan() -> JobPlan:
    job = ps.Job("job", key_groups=4)
    stream = job.data_stream("numbers", schema=KIND)
    stream.sink_to("a")
    stream.sink_to("b")
    return JobPlan(job.graph, 4, frozenset(), frozenset(), strict=False)


def row(sink: str, *numbers: int) -> PackedRow:
    batch = KIND.batch([KIND.python_class(number) for number in numbers])
    return PackedRow(f"sink/{sink}", 0, 0, "p", 0, to_bytes(batch))


def writer(a: MemorySink, b: MemorySink) -> Writer:
    return Writer(plan(), {"a": (a, KIND, KIND.schema), "b": (b, KIND, KIND.schema)}, "lineage")


def reports(made: Iterator[Any]) -> list[tuple[Any, ...]]:
    (batch,) = made
    assert batch.schema == REPORT_SCHEMA
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


class ConnectedSink(MemorySink):
    """A sink that has connected so many times."""

    connected = 0

    def connect(self) -> None:
        self.connected += 1


def test_sinks_connect_before_records_come() -> None:
    """Those that can, but not that of dead letters, of which there may never be any."""
    sink, dead_letters = ConnectedSink(), ConnectedSink()
    sinks = {"a": sink, "b": MemorySink(), DEAD_LETTERS: dead_letters}
    Writer(plan(), {name: (one, KIND, KIND.schema) for name, one in sinks.items()}, "lineage").connect()
    assert (sink.connected, dead_letters.connected) == (1, 0)


@given(rows=st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 9), min_size=1)), max_size=9))
def test_each_sink_gets_its_rows_in_order_and_they_are_counted(rows: list[tuple[str, list[int]]]) -> None:
    """One task for each sink that gets anything; its message and its count go to the driver."""
    sinks = {"a": MemorySink(), "b": MemorySink()}
    packed = [row(name, *numbers) for name, numbers in rows]
    found = reports(writer(**sinks).batches(packed, batch_id=5, partition=2, attempt=9))
    expected = {name: [n for other, numbers in rows if other == name for n in numbers] for name in sinks}
    assert sorted(found) == [
        ("out", name, 2, len(numbers), b"partition 2") for name, numbers in expected.items() if numbers
    ]
    for name, sink in sinks.items():
        assert not sink.aborted
        written = [
            n for task in sink.finished for batch, _ in task.batches for n in batch.column(0).to_pylist()
        ]
        assert written == expected[name]
        assert len(sink.finished) == bool(expected[name])
        for task in sink.finished:
            context = task.context
            assert (context.batch_id, context.partition, context.attempt, context.lineage) == (
                5,
                2,
                9,
                "lineage",
            )


def test_counts_are_reported_as_they_came() -> None:
    """Records in and keys of a step do not touch a sink."""
    rows = [counts_row("in", "numbers", 3), counts_row("keys", "step", 4, key_group=7)]
    found = reports(writer(MemorySink(), MemorySink()).batches(rows, 0, 0, 0))
    assert found == [("in", "numbers", 0, 3, b""), ("keys", "step", 7, 4, b"")]


def test_a_task_without_rows_reports_nothing() -> None:
    """An empty batch of reports, and no task of a sink is opened."""
    sink = MemorySink()
    assert reports(writer(sink, sink).batches([], 0, 0, 0)) == []
    assert (sink.finished, sink.aborted) == ([], [])


@pytest.mark.parametrize("failure", ["write", "finish", "rows", "stop"])
def test_a_failure_aborts_every_sink(failure: str) -> None:
    """When a sink fails, or the records do not come to their end, no sink keeps what this task wrote."""
    a = MemorySink()
    b = MemorySink(fails_at_write=failure == "write", fails_at_finish=failure == "finish")

    def rows() -> Iterator[PackedRow]:
        yield row("a", 1)
        yield row("b", 2)
        if failure == "rows":
            raise OSError("the disk is full")
        if failure == "stop":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt if failure == "stop" else OSError):
        list(writer(a, b).batches(rows(), 0, 0, 0))
    assert len(a.aborted) == len(b.aborted) == 1


class Echo(ps.ProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Any]:
        yield record


def test_a_forwarder_takes_only_what_its_steps_emitted() -> None:
    """All other rows pass unchanged and in their order; places count on through a key group's emissions."""
    job = ps.Job("job", key_groups=4)
    stream = job.data_stream("numbers", schema=KIND)
    for step in ("one", "two"):
        stream.key_by("number").process(step, Echo(), output=KIND).sink_to(f"to-{step}")
    job_plan = JobPlan(job.graph, 4, frozenset(), frozenset(), strict=False)

    def emitted(step: str, group: int, *numbers: int) -> PackedRow:
        return row("", *numbers)._replace(
            destination=emission_destination(step, ""), key_group=group, partition=f"{group:05d}"
        )

    passing = [row("elsewhere", 1), counts_row("in", "numbers", 3), emitted("two", 0, 1)]
    rows = [
        passing[0],
        emitted("one", 0, 1, 2),
        passing[1],
        emitted("one", 0, 3),
        emitted("one", 1, 4),
        passing[2],
    ]
    found = list(
        unpacked_rows(Forwarder(job_plan, ["step/one"]).batches(packed_batches(rows, job_plan.slots)))
    )
    places = [(r.destination, r.partition, r.first_offset) for r in found if r.destination == "sink/to-one"]
    assert places == [
        ("sink/to-one", "/one/00000", 0),
        ("sink/to-one", "/one/00000", 2),
        ("sink/to-one", "/one/00001", 0),
    ]
    rest = [r._replace(body=bytes(r.body)) for r in found if r.destination != "sink/to-one"]
    assert rest == [r._replace(body=bytes(r.body)) for r in passing]
