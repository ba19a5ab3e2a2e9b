"""Starts a job again with another number of tasks, as a restore does: whole key groups move."""

from __future__ import annotations

from in_process_job import InProcessJob
from memory_entries import MemoryEntries

import penstock as ps
from penstock.operators.slot import Header, merged
from penstock.state.slot_tables import SlotTables
from penstock.state.unions import UnionListState, unions

__all__ = ["rescaled"]


def rescaled(job: ps.Job, before: InProcessJob, partitions: int) -> InProcessJob:
    """The job with what its steps hold in `before`."""
    after = InProcessJob(job, partitions=partitions, topics=before.plan.partitions)
    after._offsets, after.now = dict(before._offsets), before.now
    # All slots run in the first micro-batch, as they take over their seeds.
    after.wakes = {(level[0].id, slot): 0 for level in after.plan.levels() for slot in after.plan.slot_of}
    for node in after.plan.graph.steps():
        core = after.plan.core(node)
        stored = [SlotTables(core.state_schema, MemoryEntries(s)) for s in _slots(before, node.id)]
        for slot, share in after.plan.slot_of.items():
            tables = SlotTables(
                core.state_schema, MemoryEntries(after.states.setdefault((node.id, slot), {}))
            )
            for found in stored:
                for group in share.own & found.tables.keys():
                    tables.put(group, found.table(group).all_rows())
            # What the slots keep once is the same in all of them, but for the union, which is made anew.
            every = {group: one.table(group).all_rows() for one in stored for group in one.tables}
            kinds = {
                spec.name: spec.arrow_type
                for spec in core.specs
                if isinstance(core.states[spec.name], UnionListState)
            }
            header = merged([Header.of(one.header) for one in stored])
            header.unions = unions(every, kinds)
            tables.put_header(header.dump())
            if tables.changed:
                tables.store()
    return after


def _slots(job: InProcessJob, step_id: str) -> list[dict[str, bytes]]:
    return [stored for (name, _), stored in job.states.items() if name == step_id and stored]
