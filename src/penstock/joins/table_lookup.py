"""Table lookups: add to each record the row that a table outside the job has for it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.joins.held_rows import HeldRows, Ints
from penstock.joins.lookup_source import (
    BETWEEN_ROWS,
    LookupKeys,
    LookupSource,
    Rows,
    forget_rows,
    rows_of_keys,
)
from penstock.joins.pair_expressions import NONE, PairExpressions, Pairs
from penstock.operators.expression_transforms import make_settings, read_parameters
from penstock.operators.functions import ProcessFunction
from penstock.records.types import RecordType
from penstock.records.wire_formats import JsonFormat
from penstock.state.shared import Setting

__all__ = ["Enriched", "KeysOfRecords", "TableLookup", "table_lookup"]


@dataclass(frozen=True)
class KeysOfRecords:
    """The distinct keys of records, and the number of the key of each; `NONE` for a record with a null in it."""

    keys: LookupKeys
    numbers: Ints


@dataclass(frozen=True)
class Enriched:
    """Records with the fields of the table, the rows of the records they come from, and why others have none."""

    batch: pa.RecordBatch
    rows: Ints
    failures: Mapping[int, str]


class TableLookup(ProcessFunction):
    """Joins a record with the row of a table outside the job whose fields equal fields of the record.

    `table` is the name of the table in the job. Without a row a record is dropped (`missing` is "drop"), emitted with
    nulls ("null"), or a dead letter ("dead_letter").
    """

    source: LookupSource | None = None
    # The rows that the run of a slot has taken so far, by the names of their keys.
    taken: dict[str, Rows] | None = None

    def __init__(
        self,
        table: str,
        kinds: tuple[RecordType, RecordType],
        on: Sequence[tuple[str, str]],
        expressions: PairExpressions,
        types: Mapping[str, pa.DataType],
        missing: str,
    ) -> None:
        self.table: Final = table
        self.kinds: Final = kinds
        self.on: Final = tuple(on)
        self._expressions: Final = expressions
        self._types: Final = {name: types[name] for name in expressions.parameters}
        self._missing: Final = missing

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the table by which rows are found."""
        return tuple(field for _, field in self.on)

    def of(self, source: LookupSource | None) -> TableLookup:
        """Return the function for the table that the job is bound to."""
        bound = copy.copy(self)
        bound.source = source
        return bound

    def clear_cache(self) -> None:
        """Forget the rows that this process has kept, so that the next records see the current table."""
        if self.source is not None:
            forget_rows(self.source)

    def find(self, keys: LookupKeys) -> list[Rows]:
        """Return the rows that the table has for each key. Raises ExternalSystemError when it does not answer."""
        assert self.source is not None, "a plan has the tables that the job is bound to"
        return rows_of_keys(self.source, self.fields, keys)

    def keys_of(self, records: pa.RecordBatch) -> KeysOfRecords:
        """Return the keys of records."""
        columns = [records.column(name) for name, _ in self.on]
        if len(columns) == 1:
            encoded = columns[0].dictionary_encode()
            numbers = encoded.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
            return KeysOfRecords(LookupKeys.of([encoded.dictionary.to_pylist()]), numbers)
        valid = np.ones(records.num_rows, bool)
        numbers = np.zeros(records.num_rows, np.int64)
        for column in columns:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
            encoded = column.dictionary_encode()
            codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            # Pairs of numbers become numbers again, so that they stay small however many fields there are.
            numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1]
        _, first, numbers = np.unique(numbers[valid], return_index=True, return_inverse=True)
        rows = pa.array(np.flatnonzero(valid)[first])
        keys = LookupKeys.of([column.take(rows).to_pylist() for column in columns])
        found = np.full(records.num_rows, NONE, np.int64)
        found[valid] = numbers
        return KeysOfRecords(keys, found)

    def enriched(self, records: pa.RecordBatch, of: KeysOfRecords, rows: Mapping[str, Rows]) -> Enriched:
        """Return the records with the rows that their keys have, by the names of the keys."""
        left = HeldRows.numbered(records, self.kinds[0])
        right, found, reasons = self._decoded(of.keys, rows)
        places = np.append(found, NONE)[of.numbers]
        values = read_parameters(self, self._types)
        sides = (left, right)
        matched = np.flatnonzero(places != NONE)
        mask, failures = self._expressions.true(Pairs(matched, places[matched], matched, {}), sides, values)
        problems = {int(matched[row]): reason for row, reason in failures.items()}
        for key, reason in reasons.items():
            problems |= dict.fromkeys(np.flatnonzero(of.numbers == key).tolist(), reason)
        is_missing = np.ones(records.num_rows, bool)
        is_missing[matched[mask]] = False
        is_missing[list(problems)] = False
        if self._missing == "dead_letter":
            reason = f"the table {self.table!r} has no row for it"
            problems |= dict.fromkeys(np.flatnonzero(is_missing).tolist(), reason)
        keep = np.ones(records.num_rows, bool)
        if self._missing != "null":
            keep = ~is_missing
        keep[list(problems)] = False
        places[is_missing] = NONE
        chosen = np.flatnonzero(keep)
        batch, failures = self._expressions.selected(Pairs(chosen, places[chosen], chosen, {}), sides, values)
        if failures:
            problems |= {int(chosen[row]): reason for row, reason in failures.items()}
            fine = np.delete(np.arange(len(chosen)), list(failures))
            batch, chosen = batch.take(pa.array(fine)), chosen[fine]
        return Enriched(batch, chosen, dict(sorted(problems.items())))

    def _decoded(self, keys: LookupKeys, rows: Mapping[str, Rows]) -> tuple[HeldRows, Ints, dict[int, str]]:
        """Return the rows, those that each key has, and why the rows of some keys cannot become records."""
        found = pa.array([rows[name] for name in keys.names], pa.string())
        places = np.full(len(keys), NONE, np.int64)
        is_row = pc.not_equal(found, "").to_numpy(zero_copy_only=False)
        several = pc.match_substring(found, BETWEEN_ROWS).to_numpy(zero_copy_only=False)
        why = f"the table {self.table!r} has several rows for it"
        reasons = dict.fromkeys(np.flatnonzero(several).tolist(), why)
        numbers = np.flatnonzero(is_row & ~several)
        raw = found.take(pa.array(numbers)).cast(pa.binary())
        decoded = JsonFormat(self.kinds[1], allow_nan=True).decode(raw)
        good = np.arange(len(raw)) if decoded.rows is None else decoded.rows
        places[numbers[good]] = np.arange(len(good))
        for row, reason in decoded.bad:
            reasons[int(numbers[row])] = f"the row of the table {self.table!r}: {reason}"
        return HeldRows.numbered(decoded.batch, self.kinds[1]), places, reasons


def table_lookup(settings: Mapping[str, Setting[Any]], *arguments: Any) -> TableLookup:
    """Return the function of a step with these settings as parameters of its expressions."""
    names = make_settings(settings)
    made: Any = type("TableLookup", (TableLookup,), names)
    found: TableLookup = made(*arguments)
    return found
