"""Lookup runs: run a step that looks records up in a table outside the job, as columns, with rows that a replay has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.engine.emission_causes import causes_in
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.group_emissions import DueTimers, row_times
from penstock.engine.group_run import GroupRun
from penstock.engine.step import MAIN, StepResult
from penstock.joins.lookup_source import Key, Rows
from penstock.joins.table_lookup import TableLookup
from penstock.models.kept_answers import LOOKUPS
from penstock.operators.functions import Context
from penstock.operators.record_blocks import Block, join_blocks
from penstock.state.group_state import GroupState
from penstock.state.open_values import OpenValues

__all__ = ["LookupRun"]


class LookupRun(GroupRun):
    """One run of a lookup in one key group, with one query for all keys of which no row is known."""

    def __init__(
        self, binding: FunctionInstance, context: Context, key_group: int, state: GroupState | OpenValues
    ) -> None:
        super().__init__(binding, context, key_group, state)
        assert isinstance(binding.function, TableLookup)
        self._lookup: Final = binding.function

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
        rows = self._found(list(dict.fromkeys(key for of in of_blocks for key in of.keys)))
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

    def _found(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of keys: those that this work has taken before, else those that the table has."""
        answers, taken = self._binding.answers, self._lookup.taken
        if taken is None:
            taken = self._lookup.taken = {name: tuple(rows) for name, rows in answers.taken(LOOKUPS)}
        names = {key: msgspec.json.encode(key).decode() for key in keys}
        new = self._lookup.find([key for key, name in names.items() if name not in taken])
        if new:
            answers.note(LOOKUPS, [[names[key], rows] for key, rows in new.items()])
            # Also for later key groups, whatever the table has by then.
            taken |= {names[key]: rows for key, rows in new.items()}
        return {key: taken[name] for key, name in names.items()}
