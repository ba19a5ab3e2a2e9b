"""The core of a keyed step: blocks of records and stored state in, emitted records and new state out.

A step knows nothing of micro-batches or of who calls it: `StepCore.run` is a pure function of its arguments (as far
as the user's function is), for one key group at a time. All control records of the blocks are applied before any
data record.
"""

from __future__ import annotations

import copy
import gc
import operator
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock.errors
from penstock.errors import SchemaError, StateError, UnstorableValueError
from penstock.operators.blocks import KEY, OFFSET, RAW, Block, DeadLetter, raw_bytes
from penstock.operators.functions import (
    BatchContext,
    ConnectedProcessFunction,
    Context,
    ProcessFunction,
    declared_states,
    is_vectorised,
    state_specs,
)
from penstock.operators.keys import KeySelector
from penstock.records import RecordType
from penstock.state.group_state import GroupState, key_values
from penstock.state.values import BoundValueState, CheckedValueState

__all__ = ["Emission", "StepCore", "StepInput", "StepResult", "no_cyclic_collection", "reason_of"]

MAIN: Final = ""
_PENSTOCK: Final = str(Path(penstock.errors.__file__).parent) + os.sep


@dataclass(frozen=True)
class StepInput:
    """One stream that enters a step: its name, its records, their key, and whether it steers."""

    stream: str
    record_type: RecordType
    key: KeySelector
    is_control: bool


@dataclass(frozen=True)
class Emission:
    """Records that a step emitted to one output ("" is the main one), with the keys they were emitted under."""

    output: str
    batch: pa.RecordBatch
    keys: pa.Array


@dataclass
class StepResult:
    """What came of one run of a step in one key group. `state` is None when it has not changed."""

    emissions: list[Emission] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    state: bytes | None = None
    keys: int = 0


class StepCore:
    """A keyed step: a process function, its inputs (control first) and its outputs."""

    def __init__(
        self,
        step: str,
        function: ProcessFunction,
        inputs: Sequence[StepInput],
        outputs: dict[str, RecordType],
    ) -> None:
        self.step = step
        self.inputs: Final = tuple(inputs)
        self.outputs: Final = outputs
        self._function = function
        self._specs = state_specs(function)
        self._vectorised = is_vectorised(function)

    def run(self, key_group: int, blocks: Sequence[Block], stored: bytes | None) -> StepResult:
        """Process the blocks of one key group, in their own order whatever the order of the argument."""
        ordered = sorted(blocks, key=lambda block: block.order)
        with no_cyclic_collection():
            try:
                return _Run(self, key_group, stored, BoundValueState).process(ordered)
            except UnstorableValueError:
                # What is found when the states are stored does not say which record did it. So once more, and every
                # value is tried when it is set; that would be too slow to do always. (In the first form, a value that
                # another one replaces within the same micro-batch is never stored, and so never tried.)
                return _Run(self, key_group, stored, CheckedValueState).process(ordered)

    def bind(
        self, state: GroupState, kind: type[BoundValueState]
    ) -> tuple[ProcessFunction, list[BoundValueState]]:
        """The user's function with its states bound to a key group, and those states."""
        function = copy.copy(self._function)
        bound = []
        for name in declared_states(self._function):
            value = kind(state.columns[name], state.cursor)
            setattr(function, name, value)
            bound.append(value)
        return function, bound

    def new_state(self, stored: bytes | None) -> GroupState:
        """The state of a key group from its stored form."""
        try:
            return GroupState(self.inputs[0].key.key_type, self._specs, stored)
        except StateError as e:
            raise StateError(f"Step {self.step!r}: {e}") from e

    @property
    def vectorised(self) -> bool:
        """Whether data goes through `process_batch`."""
        return self._vectorised


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """Without the cyclic collector: records make no cycles, and its passes over them cost more than the records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Run:
    """One run of a step in one key group."""

    def __init__(
        self, core: StepCore, key_group: int, stored: bytes | None, kind: type[BoundValueState]
    ) -> None:
        self._core = core
        self._key_group = key_group
        self._state = core.new_state(stored)
        self._function, self._bound = core.bind(self._state, kind)
        self._context = Context(
            key_group, self._state.cursor, (name for name in core.outputs if name != MAIN)
        )
        self._result = StepResult()

    def process(self, blocks: list[Block]) -> StepResult:
        data = []
        for block in blocks:
            if self._core.inputs[block.input].is_control:
                assert isinstance(self._function, ConnectedProcessFunction)
                self._per_record(block, self._function.process_control)
            else:
                data.append(block)
        if self._core.vectorised:
            self._flush()
            for block in _joined(data):
                self._per_batch(block)
        else:
            self._preload(data)
            for block in data:
                self._per_record(block, self._function.process_record)
        self._result.state, self._result.keys = self._state.dump()
        return self._result

    def _flush(self) -> None:
        self._state.flush()
        for value in self._bound:
            value.refresh()

    def _preload(self, data: list[Block]) -> None:
        self._state.preload(sum(block.batch.num_rows for block in data))
        for value in self._bound:
            value.refresh()

    def _keys(self, block: Block) -> pa.Array:
        key = block.column(KEY)
        return self._core.inputs[block.input].key.column(block.batch) if key is None else key

    # -- record by record --

    def _per_record(self, block: Block, process: Any) -> None:
        """Run a method on each record of a block; a record on which it raises leaves no trace but a dead letter."""
        source = self._core.inputs[block.input]
        key_column = self._keys(block)
        keys = key_values(key_column)
        columns = [f.to_python(block.batch.column(f.name)) for f in source.record_type.fields]
        keys_left = iter(keys)
        records = zip(
            range(len(keys)), keys_left, map(source.record_type.python_class, *columns), strict=True
        )
        emitted = _Emitted(len(keys), keys_left)
        self._context.enter(source.stream, emitted)
        while True:
            try:
                self._run_records(records, process, emitted)
                break
            except Exception as e:  # user code may raise anything
                row = emitted.current_row()
                emitted.forget(row)
                self._state.take_back()
                self._dead_letter(block, row, reason_of(e))
        self._emit(block, key_column, emitted)

    def _run_records(self, records: Iterator[tuple[int, Any, Any]], process: Any, emitted: _Emitted) -> None:
        """The innermost loop. What it does for every record, it does with locals."""
        context = self._context
        cursor = self._state.cursor
        undo = cursor.undo
        append, append_row = emitted.records.append, emitted.rows.append
        for row, key, record in records:
            cursor.key = key
            result = process(record, context)
            if result is not None:
                for item in result:
                    append(item)
                    append_row(row)
            if undo:
                undo.clear()

    def _emit(self, block: Block, keys: pa.Array, emitted: _Emitted) -> None:
        if emitted.records:
            self._emit_records(block, keys, MAIN, emitted.records, emitted.rows)
        for name in dict.fromkeys(name for _, name, _ in emitted.side):
            found = [(row, item) for row, output, item in emitted.side if output == name]
            self._emit_records(block, keys, name, [item for _, item in found], [row for row, _ in found])

    def _emit_records(
        self, block: Block, keys: pa.Array, output: str, records: list[Any], rows: list[int]
    ) -> None:
        output_type = self._core.outputs.get(output)
        if output_type is None:
            for row in rows:
                self._dead_letter(
                    block, row, f"step {self._core.step!r} emitted a record but declares no output"
                )
            return
        try:
            batch = output_type.batch(records)
        except SchemaError:
            records, rows = self._fitting(block, output_type, records, rows)
            batch = output_type.batch(records)
        if records:
            self._result.emissions.append(Emission(output, batch, keys.take(pa.array(rows, pa.int64()))))

    def _fitting(
        self, block: Block, output_type: RecordType, records: list[Any], rows: list[int]
    ) -> tuple[list[Any], list[int]]:
        """The emitted records that fit the output type; the others become dead letters."""
        kept: list[tuple[Any, int]] = []
        for record, row in zip(records, rows, strict=True):
            try:
                output_type.batch([record])
                kept.append((record, row))
            except SchemaError as e:
                self._dead_letter(
                    block, row, f"the emitted record {record!r} does not fit {output_type!r}: {e}"
                )
        return [record for record, _ in kept], [row for _, row in kept]

    def _dead_letter(self, block: Block, row: int, reason: str) -> None:
        source = self._core.inputs[block.input]
        offset = block.batch.column(OFFSET)[row].as_py()
        raw = raw_bytes(block.column(RAW), block.batch, row, source.record_type)
        letter = DeadLetter(reason, source.stream, self._core.step, block.partition, offset, raw)
        self._result.dead_letters.append(letter)

    # -- batch by batch --

    def _per_batch(self, block: Block) -> None:
        """Run `process_batch`; where it raises, halve the batch until the records to blame stand alone."""
        source = self._core.inputs[block.input]
        keys = self._keys(block)
        slots = self._state.slots_of(keys)
        names = list(source.record_type.field_names)
        records = block.batch.select(names)

        def visit(low: int, high: int) -> None:
            columns = self._state.columns.values()
            before = [column.snapshot() for column in columns]
            part = records.slice(low, high - low)
            context = BatchContext(slots[low:high], self._state.keys, source.stream, self._key_group)
            try:
                emissions = self._run_batch(part, context, keys.slice(low, high - low))
            except Exception as e:  # user code may raise anything
                for column, snapshot in zip(columns, before, strict=True):
                    column.restore(snapshot)
                if high - low == 1:
                    self._dead_letter(block, low, reason_of(e))
                    return
                middle = (low + high) // 2
                visit(low, middle)
                visit(middle, high)
                return
            self._result.emissions += emissions

        if len(records):
            visit(0, len(records))

    def _run_batch(self, records: pa.RecordBatch, context: BatchContext, keys: pa.Array) -> list[Emission]:
        returned = self._function.process_batch(records, context)
        found = list(context.emitted)
        if returned is not None:
            batch, rows = returned if isinstance(returned, tuple) else (returned, None)
            found.insert(0, (MAIN, batch, rows))
        return [self._emission(name, batch, rows, keys) for name, batch, rows in found if batch.num_rows]

    def _emission(
        self, output: str, batch: pa.RecordBatch, rows: npt.NDArray[np.int64] | None, keys: pa.Array
    ) -> Emission:
        output_type = self._core.outputs.get(output)
        if output_type is None:
            raise ValueError(f"the output {output or 'main'!r} is not declared by step {self._core.step!r}")
        if rows is None and batch.num_rows != len(keys):
            raise ValueError(
                f"process_batch got {len(keys)} records and returned {batch.num_rows}; return (batch, rows) with the "
                "input row of each"
            )
        missing = [name for name in output_type.field_names if name not in batch.schema.names]
        if missing:
            raise ValueError(f"process_batch returned no column {missing[0]!r}; {output_type!r} is declared")
        if rows is not None and len(rows) != batch.num_rows:
            raise ValueError(f"process_batch returned {batch.num_rows} records and the rows of {len(rows)}")
        columns = [batch.column(f.name).cast(f.arrow_type) for f in output_type.fields]
        for f, column in zip(output_type.fields, columns, strict=True):
            f.check(column)
        fitted = pa.RecordBatch.from_arrays(columns, schema=output_type.schema)
        return Emission(output, fitted, keys if rows is None else keys.take(pa.array(rows)))


class _Emitted:
    """What a block's records have emitted so far.

    The row at work is derived from how many keys are left, so that the innermost loop need not note it.
    """

    def __init__(self, count: int, keys_left: Iterator[Any]) -> None:
        self.records: list[Any] = []
        self.rows: list[int] = []
        self.side: list[tuple[int, str, Any]] = []
        self._count = count
        self._keys_left = keys_left

    def current_row(self) -> int:
        """The row whose record is being processed."""
        return self._count - operator.length_hint(self._keys_left) - 1

    def side_output(self, name: str, record: Any) -> None:
        """Take a record for a side output."""
        self.side.append((self.current_row(), name, record))

    def forget(self, row: int) -> None:
        """Forget what a row has emitted, which is the last one."""
        while self.rows and self.rows[-1] == row:
            self.rows.pop()
        del self.records[len(self.rows) :]
        while self.side and self.side[-1][0] == row:
            self.side.pop()


def _joined(blocks: list[Block]) -> list[Block]:
    """Neighbouring blocks of one partition as one block each, since vectorised code is fast on large ones."""
    joined: list[Block] = []
    start = 0
    for end in range(1, len(blocks) + 1):
        first = blocks[start]
        if end < len(blocks) and (blocks[end].input, blocks[end].partition) == (first.input, first.partition):
            continue
        batches = [block.batch for block in blocks[start:end]]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        joined.append(Block(first.input, first.partition, first.first_offset, batch))
        start = end
    return joined


def reason_of(error: Exception) -> str:
    """The traceback without penstock's own frames, as text that can be written anywhere."""
    frames = traceback.extract_tb(error.__traceback__)
    user = [frame for frame in frames if not frame.filename.startswith(_PENSTOCK)]
    lines = traceback.format_list(user) + traceback.format_exception_only(error)
    return "".join(lines).strip().encode("utf-8", "backslashreplace").decode()
