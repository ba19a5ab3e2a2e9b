"""States as a job declared them before and declares them now, and what the changed job finds in them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stored_jobs import JobWith, StepWith, StoredJob, captured, job_of, plan_of, read_from

import penstock as ps
from penstock.checkpoints.evolution import Change, plan_changes
from penstock.jobs.restore import declared_state
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.snapshots.snapshot_reader import read_table
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import json_rows
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

__all__ = ["GROUPS", "STEP", "Case", "Outcome", "after_of", "before_of", "by_id", "declared_after", "planned"]

GROUPS = 4
STEP = "step 0"


@dataclass
class Case:
    """A state before and after, what a key held, and the expected plan: the outcome, its detail, and what the
    key then holds.
    """

    id: str
    before: Any
    after: Any
    value: Any
    outcome: str
    detail: str = ""
    kept: Any = None


def by_id(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


def before_of(states: dict[str, Any], rows: dict[Any, dict[str, Any]], **more: Any) -> StoredJob:
    """Return a job with one step over int keys, after two micro-batches."""
    keys = list(rows)
    first = {key: rows[key] for key in keys}
    # The second micro-batch changes a key, so that the log also has a version of parts.
    second = {key: rows[key] for key in keys[:1]}
    return StoredJob(JobWith([StepWith(states, (int,), [first, second], **more)], GROUPS), 2)


def after_of(states: dict[str, Any], key_groups: int = GROUPS) -> ps.Job:
    return job_of([StepWith(states, (int,), [{}, {}])], key_groups)


def declared_after(case: Case, *, renamed: bool) -> tuple[str, ps.Job, Change]:
    """Return the state's present name, which may differ from the old one; the present job, and the plan."""
    name = "new" if renamed else "old"
    declared = copy.copy(case.after)
    declared.renamed_from = "old" if renamed else None
    outcome: Any = "renamed" if renamed and case.outcome == "kept" else case.outcome
    return name, after_of({name: declared}), Change(STEP, name, "old", outcome, case.detail)


class Outcome:
    """What the changed job finds: through a snapshot and a seed, in the log itself, and in a snapshot of the
    log.
    """

    def __init__(self, before: StoredJob, job: ps.Job, folder: Path, changes: list[Change]) -> None:
        self.state = declared_state(job)
        captured(folder / "before", before.state, "arrow", before.read)
        self.keys = write_seed(Snapshot.at(str(folder / "before")), self.state, 3, changes, folder / "seed")
        plan = plan_of(job, 2)
        (node,) = plan.graph.steps()
        self.core = plan.core(node)
        seeded: dict[Any, dict[str, Any]] = {}
        read_from(folder / "seed", self.state, 3)(
            node.id, lambda _, entries: seeded.update(self._rows(entries)) or []
        )
        logged: dict[Any, dict[str, Any]] = {}
        before.read(node.id, lambda _, entries: logged.update(self._rows(entries)) or [])
        assert seeded == logged
        self.rows = logged
        # As in a job that continued with its checkpoint.
        self.of_log = captured(folder / "of-log", self.state, "csv", before.read)
        of_seed = captured(folder / "of-seed", self.state, "csv", read_from(folder / "seed", self.state, 3))
        assert of_seed.digest == self.of_log.digest
        self.folder = folder

    def _rows(self, entries: dict[str, bytes]) -> dict[Any, dict[str, Any]]:
        tables = SlotTables(self.core.state_schema, MemoryEntries(dict(entries)))
        groups = [table.all_rows() for table in tables.tables.values()]
        rows = [row for group in groups for row in json_rows(group)]
        assert len(rows) == tables.keys
        return {row.pop("key"): row for row in rows}

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a state in the snapshot of the log."""
        names = {table.name for table in self.of_log.tables}
        (found_name,) = names & {f"{STEP}/{name}", f"{STEP}/shared/{name}"}
        found = read_table(open_store(str(self.folder / "of-log")), self.of_log, found_name)
        return [row for batch in found for row in json_rows(batch)]


def planned(before: StoredJob, job: ps.Job, **options: bool) -> list[Change]:
    return plan_changes(declared_state(job).steps, before.state.steps, **options)
