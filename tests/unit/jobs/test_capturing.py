"""Capturing: what slots hold becomes a snapshot, and from it the same for any number of tasks and key groups."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_jobs import drawn_jobs
from stored_jobs import JobWith, StoredJob, captured, job_of, read_from

from penstock.jobs.beginning import declared_state
from penstock.jobs.evolution import plan_changes
from penstock.jobs.seeding import Snapshot, write_seed
from penstock.snapshots.digests import Digest
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.reading import verify

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "1000"))
# Thousands of small files, which need no disk.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a folder of its own is made there


def check_expected(job: StoredJob, manifest: Manifest) -> None:
    """What is in the snapshot is what the states were set to."""
    for name, (spec, keys, values, key_type) in job.expected.items():
        if name not in {table.name for table in manifest.tables}:
            continue
        schema = manifest.table(name).arrow_schema
        if pa.types.is_struct(key_type):
            names = [field.name for field in key_type]
            keys = [dict(zip(names, key, strict=True)) for key in keys]
        columns = [pa.array(keys, key_type), spec.to_arrow(values)]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        assert manifest.table(name).digest == Digest.of([rows]).hex(), name


@given(
    drawn=drawn_jobs(),
    before=st.integers(1, 10),
    after=st.integers(1, 10),
    key_groups=st.integers(1, 9),
    form=st.sampled_from(["csv", "jsonl", "parquet", "arrow"]),
    again=st.sampled_from(["csv", "jsonl", "parquet", "arrow"]),
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_snapshot_of_what_began_from_a_snapshot_has_the_same_content(
    drawn: JobWith, before: int, after: int, key_groups: int, form: str, again: str
) -> None:
    """For all kinds of state, keys and formats, at another parallelism and with other key groups.

    Data that waits for a paused step is by key group, and needs the same ones.
    """
    stored = StoredJob(drawn, before)
    if any(step.held for step in drawn.steps):
        key_groups = drawn.key_groups
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        first = captured(folder / "first", stored.state, form, stored.read)
        check_expected(stored, first)
        state = declared_state(job_of(drawn.steps, key_groups))
        changes = plan_changes(state.steps, stored.state.steps)
        assert {change.outcome for change in changes} <= {"kept"}
        keys = write_seed(Snapshot.at(str(folder / "first")), state, after, changes, folder / "seed")
        second = captured(folder / "second", state, again, read_from(folder / "seed", state, after))
        assert second.digest == first.digest
        assert keys == {name: keys_of(stored, name) for name in state.steps}
        assert verify(str(folder / "second")).defects == ()


def keys_of(stored: StoredJob, step: str) -> int:
    """How many keys of a step hold anything."""
    held: set[Any] = set()
    for name, (_, keys, _, _) in stored.expected.items():
        if name.startswith(f"{step}/"):
            held.update(keys)
    return len(held)
