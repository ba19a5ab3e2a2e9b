"""States too large for memory are captured and distributed in pieces, unchanged.

The bounds are so low here that every piece is a row or a key group, or nearly so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from domains import Counted, CountRecords, Reading
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples
from random_jobs import drawn_jobs
from stored_jobs import JobWith, StepWith, StoredJob, captured, job_of, read_from

import penstock as ps
from penstock.checkpoints.evolution import plan_changes
from penstock.errors import StateError
from penstock.jobs.restore import declared_state
from penstock.runtime import gathered_entries
from penstock.runtime.gathered_entries import GatheredEntries
from penstock.runtime.seed import FolderSeed
from penstock.savepoints import spread_rows, state_restore
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.snapshots import snapshot_writer, table_formats
from penstock.snapshots.snapshot_reader import verify
from penstock.state import stored_runs as stored_runs_module
from penstock.state.stored_runs import stored_runs
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a folder of its own is made there


@contextlib.contextmanager
def bounds(size: int) -> Iterator[None]:
    """Set all bounds of memory, in bytes."""
    with contextlib.ExitStack() as stack:
        for module, name in (
            (table_formats, "_PIECE_BYTES"),
            (snapshot_writer, "PART_BYTES"),
            (stored_runs_module, "RUN_BYTES"),
            (state_restore, "_RANGE_BYTES"),
            (state_restore, "_VERSION_BYTES"),
            (spread_rows, "_HELD_BYTES"),
        ):
            stack.enter_context(mock.patch.object(module, name, size))
        yield


@given(
    drawn=drawn_jobs(),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    key_groups=st.integers(1, 9),
    form=st.sampled_from(["csv", "jsonl", "parquet", "arrow"]),
    size=st.sampled_from([1, 40, 400]),
)
@settings(examples(25), suppress_health_check=list(HealthCheck))
def test_what_is_captured_and_given_away_in_pieces_is_the_same(
    drawn: JobWith, before: int, after: int, key_groups: int, form: str, size: int
) -> None:
    """This holds for all kinds of state, keys and formats, through a seed and back; the result equals that
    without a bound.
    """
    stored = StoredJob(drawn, before)
    if any(step.held for step in drawn.steps):
        key_groups = drawn.key_groups
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        whole = captured(folder / "whole", stored.state, form, stored.read)
        with bounds(size):
            first = captured(folder / "first", stored.state, form, stored.read)
            state = declared_state(job_of(drawn.steps, key_groups))
            changes = plan_changes(state.steps, stored.state.steps)
            write_seed(Snapshot.at(str(folder / "first")), state, after, changes, folder / "seed")
            second = captured(folder / "second", state, form, read_from(folder / "seed", state, after))
            assert verify(str(folder / "second")).defects == ()
        third = captured(folder / "third", state, "arrow", read_from(folder / "seed", state, after))
        assert whole.digest == first.digest == second.digest == third.digest
        assert not list((folder / "seed").glob(".spread-*"))


def texts(parallelism: int = 2) -> StoredJob:
    """Return a text of 1000 characters for each of 40 keys."""
    rows = {key: {"text": f"{key:04}" * 250} for key in range(40)}
    return StoredJob(JobWith([StepWith({"text": ps.ValueState(str)}, (int,), [rows, {}])], 8), parallelism)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "arrow"])
def test_no_file_is_larger_than_the_bound(tmp_path: Path, form: str) -> None:
    """Each has as many rows as fit, in order of key, and writing again gives equal files."""
    stored = texts()
    with bounds(3500):
        found = [captured(tmp_path / f"{number}", stored.state, form, stored.read) for number in range(2)]
    table = found[0].table("step 0/text")
    assert found[0] == found[1]
    assert table.rows == 40
    assert max(file.rows for file in table.files) == 3
    assert len(table.files) >= 14
    names = [Path(file.path).stem for file in table.files]
    assert names[:2] == ["part-00000", "part-00000-0001"]
    assert len(set(names)) == len(names)
    whole = captured(tmp_path / "whole", stored.state, form, stored.read).table("step 0/text")
    assert [Path(file.path).stem for file in whole.files] == ["part-00000", "part-00001"]
    assert whole.digest == table.digest


@contextlib.contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """Measure Arrow's memory from here on, with its maximum."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def test_a_small_part_of_a_large_state_is_in_memory(tmp_path: Path) -> None:
    """The state has 8 MB here, in smaller files; this holds for capturing and for distributing."""
    rows = {key: {"text": 5 * random.Random(key).randbytes(1000).hex()} for key in range(800)}
    stored = StoredJob(JobWith([StepWith({"text": ps.ValueState(str)}, (int,), [rows, {}])], 64), 2)
    changes = plan_changes(stored.state.steps, stored.state.steps)
    with bounds(100_000):
        with arrow_memory() as capturing:
            captured(tmp_path / "sp", stored.state, "arrow", stored.read)
        with arrow_memory() as giving:
            write_seed(Snapshot.at(str(tmp_path / "sp")), stored.state, 3, changes, tmp_path / "seed")
    assert capturing.max_memory() < 1_000_000
    assert giving.max_memory() < 2_500_000


def test_a_piece_of_a_large_state_that_is_missing_is_told() -> None:
    """It is not taken for key groups without keys."""
    stored = texts(1)
    ((_, entries),) = stored.stored.items()
    schema = stored.state.steps["step 0"].schema
    with bounds(1):
        runs = list(stored_runs(schema, MemoryEntries(entries)))
        assert len(runs) > 1
        assert sum(table.keys for run in runs for table in run.values()) == 40
        gone = next(name for name in entries if name.startswith("version/"))
        without = {name: content for name, content in entries.items() if name != gone}
        with pytest.raises(StateError, match="of the stored state is missing"):
            list(stored_runs(schema, MemoryEntries(without)))


def test_entries_that_are_too_many_for_the_memory_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from there."""
    monkeypatch.setattr(gathered_entries, "_MAX_BYTES", 10)
    entries = GatheredEntries()
    expected = {f"name/{number}": bytes([number]) * number for number in range(20)}
    for name, content in expected.items():
        entries.add(name, pa.py_buffer(content))
    assert dict(entries) == expected
    assert entries.get("name/20") is None
    assert len(entries) == 20
    entries.add("name/20", pa.py_buffer(b"20"))
    assert entries["name/20"] == b"20"
    # Only the requested entries are read from disk.
    assert isinstance(entries["name/19"], memoryview)


class Noting(CountRecords):
    """Also keeps a long text for each key."""

    text = ps.ValueState(str)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Counted]:
        self.text.set(str(ctx.key) * 100)
        yield from super().process_record(record, ctx)


def test_a_job_goes_on_from_a_seed_of_many_versions(tmp_path: Path) -> None:
    """It works as with a single version: it counts on, and writes a log that others can read."""
    job = ps.Job("noting", key_groups=8)
    job.data_stream("readings", schema=Reading).key_by("room").process("count", Noting()).sink_to("out")
    readings = [Reading(room) for room in range(100)]
    before = BatchRunner(job, parallelism=2)
    before.run({"readings": [("0", readings)]})
    state = declared_state(job)
    stored: dict[int, Any] = {number: entries for number, (_, entries) in enumerate(before.states.items())}

    def read(node: str, reader: Any) -> list[bytes]:  # as a step's reader
        return [body for number, entries in stored.items() for body in reader(number, dict(entries))]

    changes = plan_changes(state.steps, state.steps)
    with bounds(1):
        captured(tmp_path / "sp", state, "arrow", read)
        write_seed(Snapshot.at(str(tmp_path / "sp")), state, 3, changes, tmp_path / "seed")
    after = BatchRunner(job, parallelism=3)
    after.plan = dataclasses.replace(after.plan, seed=FolderSeed(tmp_path / "seed"))
    for number in range(2, 5):
        found = after.run({"readings": [("0", readings)]}).output("out")
        assert sorted((one.key, one.count) for one in found) == [(key, number) for key in range(100)]
