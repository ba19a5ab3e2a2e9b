"""Routing: take records from a port through stateless functions to the steps and sinks after it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.engine.step import TABLE_WORK
from penstock.errors import StrictModeError
from penstock.joins.join_step import JOINS
from penstock.operators.error_reasons import reason_of
from penstock.operators.event_times import EVENT_TIME, no_time_reason, times_column
from penstock.operators.expression_transforms import apply_expression
from penstock.operators.keys import KeySelector
from penstock.operators.record_blocks import MESSAGE_KEY, OFFSET, ORIGIN, RAW, DeadLetter, Records
from penstock.operators.transforms import apply_transform
from penstock.runtime.packed_rows import (
    DEAD_LETTER_TYPE,
    DEAD_LETTERS,
    PackedRow,
    place_text,
    split_by_key_group,
    to_bytes,
)
from penstock.runtime.plan import JobPlan, expires_by_event
from penstock.state.key_groups import key_groups
from penstock.state.parts import part_keys, part_of
from penstock.state.timeline import TIMERS
from penstock.streams.graph import (
    ChangelogNode,
    EventTimeNode,
    ExpressionNode,
    Port,
    ProcessNode,
    SinkNode,
    TransformNode,
    UnionNode,
)
from penstock.tables.upserts import LastChanges
from penstock.windows.window_state import WINDOWS

__all__ = ["Router", "dead_letter_rows"]

# The states of the keys of so many records fit into a processor's cache in any order.
_FEW_RECORDS: Final = 1000

# Dead letters of work that no record causes name this stream.
_DUE: Final = {TIMERS: "timer", WINDOWS: "window", JOINS: "pair of records", TABLE_WORK: "group"}


def dead_letter_rows(letters: list[DeadLetter], plan: JobPlan) -> Iterator[PackedRow]:
    """Yield dead letters as a row. Raises StrictModeError for the first one in strict mode."""
    if not letters:
        return
    if plan.strict:
        raise StrictModeError(describe(letters[0]))
    first = letters[0]
    place = f"{first.stream}/{first.step}/{first.partition}"
    yield PackedRow(DEAD_LETTERS, 0, 0, place, first.offset, DEAD_LETTER_TYPE.batch(letters))


def describe(letter: DeadLetter) -> str:
    """Return a sentence that describes a dead letter."""
    step = f" at step {letter.step!r}" if letter.step else ""
    raw = letter.raw[:200].decode("utf-8", "backslashreplace")
    if letter.stream in _DUE:
        return f"The {_DUE[letter.stream]} {raw} could not be processed{step}: {letter.reason}"
    where = f"record {letter.offset} of {letter.partition!r} in stream {letter.stream!r}"
    return f"The {where} could not be processed{step}: {letter.reason} (record: {raw})"


class Router:
    """A router of the records of one port. Built once for each task."""

    def __init__(self, plan: JobPlan, port: Port) -> None:
        self._plan: Final = plan
        self._routes: Final = self._follow(port)

    def _follow(self, port: Port, branch: str = "") -> list[Callable[[Records], Iterator[PackedRow]]]:
        """Return the routes of a port. `branch` names the inputs of unions that led to it, last first."""
        routes: list[Callable[[Records], Iterator[PackedRow]]] = []
        for node, number in self._plan.graph.consumers(port):
            if isinstance(node, ProcessNode):
                routes.append(_ToStep(self._plan, node, number, branch))
            elif isinstance(node, SinkNode):
                routes.append(_ToSink(self._plan, node, branch))
            elif isinstance(node, TransformNode | ExpressionNode | ChangelogNode):
                routes.append(_Through(self._plan, node, self._follow(Port(node.id), branch)))
            elif isinstance(node, EventTimeNode):
                routes.append(_Timed(self._plan, node, self._follow(Port(node.id), branch)))
            elif isinstance(node, UnionNode):
                routes += self._follow(Port(node.id), f"{number:04d}{branch}")
        return routes

    def route(self, records: Records) -> Iterator[PackedRow]:
        """Yield the packed rows of records."""
        for route in self._routes:
            if len(records):
                yield from route(records)


class _Through:
    """A route through a stateless function or an expression."""

    def __init__(
        self,
        plan: JobPlan,
        node: TransformNode | ExpressionNode | ChangelogNode,
        onwards: list[Callable[[Records], Iterator[PackedRow]]],
    ) -> None:
        self._plan = plan
        self._node = node
        self._onwards = onwards
        self._time = None if isinstance(node, ChangelogNode) else node.time
        self._begins_times = self._time is not None and plan.wants_times(Port(node.id))

    def __call__(self, records: Records) -> Iterator[PackedRow]:
        node = self._node
        if self._begins_times:
            records = replace(records, times=times_column(records.batch.column(self._time)))
        if isinstance(node, ChangelogNode):
            result, letters = node.kind.apply(records, node.id)
        elif isinstance(node, ExpressionNode):
            result, letters = apply_expression(node.expression, records, node.input_type, node.id)
        else:
            result, letters = apply_transform(
                node.kind, node.function, records, node.input_type, node.record_type, node.id
            )
        yield from dead_letter_rows(letters, self._plan)
        for route in self._onwards:
            if len(result):
                yield from route(result)


class _Timed:
    """A route where a field has the event time. Records in which it is null become dead letters."""

    def __init__(
        self,
        plan: JobPlan,
        node: EventTimeNode,
        onwards: list[Callable[[Records], Iterator[PackedRow]]],
    ) -> None:
        self._plan = plan
        self._node = node
        self._onwards = onwards

    def __call__(self, records: Records) -> Iterator[PackedRow]:
        node = self._node
        is_missing = records.batch.column(node.time).is_null().to_numpy(zero_copy_only=False)
        if is_missing.any():
            reason, rows = no_time_reason(node.time), np.flatnonzero(is_missing)
            letters = [records.dead_letter(int(row), reason, node.record_type, node.id) for row in rows]
            yield from dead_letter_rows(letters, self._plan)
            records = records.take(np.flatnonzero(~is_missing))
        for route in self._onwards:
            if len(records):
                yield from route(records)


class _ToStep:
    """A route to an input of a step: records are split by key group, or go unchanged to one part or to every task."""

    def __init__(self, plan: JobPlan, node: ProcessNode, number: int, branch: str) -> None:
        self._plan = plan
        self._node = node
        self._number = number
        self._branch = branch
        self._edge = node.edges[number]
        self._key: Final = self._edge.key
        self._schema = plan.step_schema(node, number)
        self._keeps_order: Final = expires_by_event(node)
        self._first_groups: Final = plan.first_key_groups

    def __call__(self, records: Records) -> Iterator[PackedRow]:
        if self._key is None:
            yield from self._to_all(records)
            return
        if self._key.by_place:
            yield self._to_part(records)
            return
        records, keys, letters = self._with_keys(records, self._key)
        yield from dead_letter_rows(letters, self._plan)
        if not len(records):
            return
        batch = self._batch(records, keys if self._key.computed else None)
        place = self._place(records)
        for group, part in self._split(batch, keys):
            first = part.column(OFFSET)[0].as_py()
            yield PackedRow(self._node.id, group, self._number, place, first, to_bytes(part))

    def _split(self, batch: pa.RecordBatch, keys: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the records of each key group under which some travel. Few are not ordered by their own key groups."""
        count, travelling = self._plan.key_groups, self._plan.travelling_groups
        in_their_order = self._keeps_order or len(keys) <= _FEW_RECORDS
        if travelling is not None and in_their_order and len(self._first_groups) == 1:
            yield self._first_groups[0], batch
            return
        groups = key_groups(keys, count)
        if travelling is not None and in_their_order:
            groups, travelling = travelling[groups], None
        yield from split_by_key_group(batch, groups, count, travelling)

    def _place(self, records: Records) -> str:
        return place_text(self._branch, records.stream, records.partition)

    def _to_part(self, records: Records) -> PackedRow:
        """Return a row with the unchanged records for the part of their source partition."""
        count = self._plan.key_groups
        part = part_of(records.stream, records.partition, count)
        keys = pa.array(np.full(len(records), part_keys(count)[part]))
        body, first = to_bytes(self._batch(records, keys)), records.offsets[0].as_py()
        return PackedRow(self._node.id, part, self._number, self._place(records), first, body)

    def _to_all(self, records: Records) -> Iterator[PackedRow]:
        """Yield a row with the unchanged records for every task of the step."""
        body, first = to_bytes(self._batch(records, None)), records.offsets[0].as_py()
        place = self._place(records)
        for group in self._first_groups:
            yield PackedRow(self._node.id, group, self._number, place, first, body)

    def _batch(self, records: Records, keys: pa.Array | None) -> pa.RecordBatch:
        columns = list(self._edge.record_type.fields_of(records.batch).columns)
        columns.append(records.offsets)
        if keys is not None:
            columns.append(keys)
        if RAW in self._schema.names:
            columns.append(records.raw if records.raw is not None else pa.nulls(len(records), pa.binary()))
        if EVENT_TIME in self._schema.names:
            columns.append(records.times)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _with_keys(self, records: Records, key: KeySelector) -> tuple[Records, pa.Array, list[DeadLetter]]:
        """Return the records that have a key, their keys, and the dead letters of the others."""
        edge = self._edge
        letters: list[DeadLetter] = []
        try:
            keys = key.column(records.batch)
        except Exception:  # a user's key function may raise anything
            records, letters = self._without_errors(records, key)
            if not len(records):
                return records, pa.array([], key.key_type), letters
            keys = key.column(records.batch)
        missing = _missing(keys)
        if missing is None:
            return records, keys, letters
        fields = key.fields
        reason = f"the key {' and '.join(fields)} is null" if fields else "the key function returned no key"
        for row in np.flatnonzero(missing):
            letters.append(records.dead_letter(int(row), reason, edge.record_type, self._node.step))
        present = np.flatnonzero(~missing)
        return records.take(present), keys.take(pa.array(present)), letters

    def _without_errors(self, records: Records, key: KeySelector) -> tuple[Records, list[DeadLetter]]:
        """Return the records for which the key function does not raise, and the dead letters of the others."""
        good, letters = [], []
        for row in range(len(records)):
            try:
                key.column(records.batch.slice(row, 1))
                good.append(row)
            except Exception as e:  # as above
                reason = reason_of(e)
                letters.append(records.dead_letter(row, reason, self._edge.record_type, self._node.step))
        return records.take(np.array(good, np.int64)), letters


def _missing(keys: pa.Array) -> Any:
    """Return a mask of the keys that are null or have a null part, or None if there are none."""
    parts = keys.flatten() if pa.types.is_struct(keys.type) else [keys]
    if not any(part.null_count for part in parts):
        return None
    mask = np.zeros(len(keys), bool)
    for part in parts:
        mask |= part.is_null().to_numpy(zero_copy_only=False)
    return mask


class _ToSink:
    """A route to a sink, in the order of the records."""

    def __init__(self, plan: JobPlan, node: SinkNode, branch: str) -> None:
        self._plan = plan
        self._node = node
        self._branch = branch
        self._schema = plan.sink_schema(node)
        key = node.upsert_key
        self._upserts: Final = None if key is None else LastChanges(node.record_type, key)

    def __call__(self, records: Records) -> Iterator[PackedRow]:
        if self._upserts is not None:
            records = self._upserts.of(records)
        columns = list(self._node.record_type.fields_of(records.batch).columns)
        if MESSAGE_KEY in self._schema.names:
            keys = records.message_keys
            columns.append(keys if keys is not None else pa.nulls(len(records), pa.binary()))
            columns.append(records.offsets)
        if ORIGIN in self._schema.names:
            columns.append(
                pa.nulls(len(records), pa.string()) if records.origins is None else records.origins
            )
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        first = records.offsets[0].as_py()
        partition = f"{records.stream}/{records.partition}"
        # If a keyed level comes before the sink, rows spread over its tasks; records of one partition stay together.
        group = zlib.crc32(partition.encode()) % self._plan.key_groups
        place = place_text(self._branch, records.stream, records.partition)
        yield PackedRow(self._node.id, group, 0, place, first, batch)
