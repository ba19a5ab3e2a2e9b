"""Lookup runs: run a step that looks records up in a table outside the job, as columns; a replay gets the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.emission_causes import causes_in
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.group_emissions import DueTimers, row_times
from penstock.engine.group_run import GroupRun
from penstock.engine.step import MAIN, StepResult
from penstock.joins.lookup_source import LookupKeys, Rows
from penstock.joins.table_lookup import TableLookup
from penstock.models.kept_answers import LOOKUPS, KeptAnswers
from penstock.operators.functions import Context
from penstock.operators.record_blocks import Block, join_blocks
from penstock.state.group_state import GroupState
from penstock.state.open_values import OpenValues

__all__ = ["LookupRun", "rows_taken"]


class LookupRun(GroupRun):
    """One run of a lookup in one key group, with one query for all keys without a known row."""

    def __init__(
        self, instance: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(instance, context, key_group, state)
        assert isinstance(instance.function, TableLookup)
        self._lookup: Final = instance.function

    def process(
        self,
        blocks: list[Block],
        apply_standing: Callable[[int], None] | None,  # noqa: ARG002  # lookups have no states of keys
        due: DueTimers | None = None,  # noqa: ARG002  # nor timers
    ) -> StepResult:
        """Look the records of the blocks up."""
        names = list(self._core.inputs[-1].record_type.field_names)
        joined = join_blocks(blocks)
        of_blocks = [self._lookup.keys_of(block.batch.select(names)) for block in joined]
        rows = rows_taken(self._lookup, self._instance.answers, [of.keys for of in of_blocks])
        for block, of in zip(joined, of_blocks, strict=True):
            found = self._lookup.enriched(block.batch.select(names), of, rows)
            for row, reason in found.failures.items():
                self._dead_letter(block, row, reason)
            if found.batch.num_rows:
                times = row_times(block, self._core) if self._core.timed else None
                causes = causes_in(block) if self._core.caused else None
                of_rows = (self._keys(block), times, causes)
                self._result.emissions.append(self._emission(MAIN, found.batch, found.rows, of_rows))
        return self._result


def rows_taken(lookup: TableLookup, answers: KeptAnswers, keys: Sequence[LookupKeys]) -> dict[str, Rows]:
    """Return the rows of keys by their names: those taken earlier in this work, else those in the table.

    The result has all rows that the work has taken, also for keys of earlier key groups.
    """
    taken = lookup.taken
    if taken is None:
        taken = lookup.taken = {}
        for rows in answers.taken(LOOKUPS):
            taken |= rows
    unknown: LookupKeys | None = None
    for some in keys:
        asked = frozenset(() if unknown is None else unknown.names)
        if taken or asked:
            some = some.where([name not in taken and name not in asked for name in some.names])
        unknown = some if unknown is None else unknown.plus(some)
    if unknown is not None and len(unknown):
        found = dict(zip(unknown.names, lookup.find(unknown), strict=True))
        answers.note(LOOKUPS, [found])
        # Later key groups use these rows too, even if the table changes meanwhile.
        taken |= found
    return taken
