"""Table lookup nodes: adds lookups in a table outside the job to its graph, as steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from penstock.errors import JobDefinitionError
from penstock.joins.table_lookup import TableLookup, table_lookup
from penstock.records.types import RecordType
from penstock.streams.described_stream import DescribedStream, StepInput
from penstock.streams.join_nodes import JoinOptions, check_how, compile_pairs
from penstock.streams.lookup_table import LookupTable
from penstock.streams.step_nodes import add_process
from penstock.streams.step_validation import check_step

__all__ = ["Pairs", "add_table_lookup"]

Pairs = tuple[str, str] | Sequence[tuple[str, str]]
"""Fields that are equal in a record and in the table: one pair, or several."""

_EXAMPLE: Final = 'on=("room", "id")'


def add_table_lookup(
    step: str,
    left: StepInput,
    table: LookupTable,
    on: Pairs | None,
    missing: Literal["dead_letter"] | None,
    options: JoinOptions,
) -> DescribedStream:
    """Add a step that looks records up in a table. Raises JobDefinitionError when something does not fit."""
    check_step(step, left.stream)
    check_how(step, options.how, ("inner", "left"))
    left.stream.check_port()
    if table.graph is not left.stream.graph:
        raise JobDefinitionError(
            f"Step {step!r}: the table {table.name!r} belongs to another job. Declare it in this one."
        )
    kinds = (left.stream.record_type, table.record_type)
    pairs = _check_pairs(step, table.name, on, kinds)
    expressions, types = compile_pairs(step, kinds, options, TableLookup)
    drops = missing or ("null" if options.how == "left" else "drop")
    function = table_lookup(options.settings, table.name, kinds, pairs, expressions, types, drops)
    return add_process(step, function, [left], expressions.record_type)


def _check_pairs(
    step: str, table: str, on: Any, kinds: tuple[RecordType, RecordType]
) -> list[tuple[str, str]]:
    found = [on] if isinstance(on, tuple) and on and isinstance(on[0], str) else list(on or ())
    if not found or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in found):
        raise JobDefinitionError(
            f"Step {step!r}: say which fields are equal in the stream and in the table {table!r}: {_EXAMPLE}, or "
            'several such pairs: on=[("country", "country"), ("code", "code")].'
        )
    for mine, its in found:
        one, other = kinds[0].field(mine), kinds[1].field(its)
        if not one.arrow_type.equals(other.arrow_type):
            raise JobDefinitionError(
                f"Step {step!r}: the fields {mine!r} ({one.arrow_type}) and {its!r} ({other.arrow_type}) differ in "
                "type. Convert one first, with select."
            )
    return found
