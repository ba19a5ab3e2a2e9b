"""Process functions: user code with keyed state, for one record or for a batch of records at a time."""

from __future__ import annotations

import collections.abc
import datetime as dt
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.instants import nearest_instant
from penstock.control.commands import Command
from penstock.errors import JobDefinitionError, StateError
from penstock.records.schemas import record_type
from penstock.records.types import RecordType
from penstock.state.cursor import Cursor
from penstock.state.timer import Timer, Timers
from penstock.state.values import KeyedState

__all__ = ["BatchContext", "CommandContext", "ConnectedProcessFunction", "Context", "ProcessFunction"]


class Context:
    """What a function may know about the record that it processes, besides the record.

    Attributes:
        key: the record's key; None where code runs for the whole step, and in steps without a key.
        stream: name of the stream that the record came from.
        key_group: number of the key group that the key belongs to; in a step without a key, of the part.
        timers: `register(at, name)` and `delete(at, name)` for timers of the key, where `on_timer` is overridden.
        watermark: how far event time is claimed to be, before the records of this micro-batch; None before the first
            watermark. In `on_timer` of a timer by event time it is the one behind them.
        event_time: the record's event time where no field of it holds that, and in steps that keep values by event
            time; for a control record the time from which it is effective, None when that is the cut. What is emitted
            has it as its own, should a step behind go by event time.

    """

    __slots__ = ("_cursor", "_emitted", "_keys", "_side_outputs", "key_group", "stream")

    def __init__(self, cursor: Cursor, side_outputs: Iterable[str]) -> None:
        self.key_group = 0
        self.stream = ""
        self._cursor = cursor
        self._side_outputs = frozenset(side_outputs)
        self._emitted: Any = None
        self._keys: Callable[[], Iterator[Any]] | None = None

    @property
    def key(self) -> Any:
        """The key of the current record."""
        return self._cursor.key

    @property
    def event_time(self) -> dt.datetime | None:
        """The event time of the current record."""
        cursor = self._cursor
        if cursor.time is None and cursor.time_ms is not None:
            return nearest_instant(cursor.time_ms)
        return cursor.time

    @property
    def watermark(self) -> dt.datetime | None:
        """The watermark; the end of time as the last moment that a datetime can tell."""
        at_ms = self._cursor.watermark_ms
        return None if at_ms is None else nearest_instant(at_ms)

    @property
    def timers(self) -> Timers:
        """The timers of the current key."""
        timers = self._cursor.timers
        if timers is None:
            raise StateError("ctx.timers is for functions that override on_timer, and this one does not.")
        return timers

    def keys(self) -> Iterator[Any]:
        """All keys that hold a value, one after the other; within the loop states speak of that key.

        Only where code runs for the whole step: in `process_control` of a broadcast stream, and in handlers of commands
        to the step. Each task of the step goes through its own keys, so that together they go through all.
        """
        if self._keys is None:
            raise StateError(
                "ctx.keys() is for code that runs for the whole step: process_control of a broadcast stream, and "
                "handlers of the scope 'step'."
            )
        return self._keys()

    def parts(self) -> Iterator[int]:
        """All parts that hold anything, by their numbers, in a step without a key; within the loop states speak of it.

        Only where code runs for the whole step, as `keys` of a step with a key.
        """
        raise StateError("ctx.parts() is for steps without a key; this one has keys, see ctx.keys().")

    def side_output(self, name: str, record: Any) -> None:
        """Emit a record to a side output that the function declares in `side_outputs`."""
        if name not in self._side_outputs:
            known = ", ".join(sorted(self._side_outputs)) or "none"
            raise ValueError(f"the side output {name!r} is not declared; declared are: {known}")
        self._emitted.side_output(name, record)

    def enter(self, stream: str, emitted: Any) -> None:
        """Called by the step before the records of a block."""
        self.stream = stream
        self._emitted = emitted

    def open_keys(self, keys: Callable[[], Iterator[Any]]) -> None:
        """Called by the step where code runs for the whole step: what `keys` goes through."""
        self._keys = keys


class CommandContext(Context):
    """What a command handler may know, besides the payload.

    Attributes:
        command: the command, with its id, kind, target, version, sender and times.

    """

    __slots__ = ("_replies", "command")

    def __init__(self, cursor: Cursor, side_outputs: Iterable[str], command: Command) -> None:
        super().__init__(cursor, side_outputs)
        self.command = command
        self._replies: list[tuple[Any, Any]] = []

    def reply(self, answer: Any) -> None:
        """Put an answer into the command's receipt: anything that JSON can hold.

        What is replied outside of a key counts once, not once for each task.
        """
        reply = (msgspec.to_builtins(self._replies_for()), msgspec.to_builtins(answer, str_keys=True))
        # What cannot be written raises here, where the handler is to blame.
        msgspec.msgpack.encode(reply)
        self._replies.append(reply)

    @property
    def replies(self) -> list[tuple[Any, Any]]:
        """What was replied so far, each with the key it was replied for; in a step without a key, with the part."""
        return self._replies

    def _replies_for(self) -> Any:
        return self._cursor.key


class _WithoutKey(Context):
    """What is different where there is no key: the cursor's is that of a part."""

    __slots__ = ()

    @property
    def key(self) -> None:
        return None

    def keys(self) -> Iterator[Any]:
        raise StateError("ctx.keys() is for steps with a key; this one has parts, see ctx.parts().")

    def parts(self) -> Iterator[int]:
        if self._keys is None:
            raise StateError(
                "ctx.parts() is for code that runs for the whole step: process_control of a broadcast stream, and "
                "handlers of commands."
            )
        return self._keys()


class PartContext(_WithoutKey):
    """The context in a step without a key."""

    __slots__ = ()


class PartCommandContext(_WithoutKey, CommandContext):
    """The context of a command in a step without a key."""

    __slots__ = ()

    def _replies_for(self) -> int | None:
        return None if self._cursor.key is None else self.key_group


class BatchContext:
    """What a vectorised function may know about the batch of records that it processes.

    Attributes:
        key_indices: for each record the index of its key (int64), by which state columns are indexed.
        keys: the keys by index, as an Arrow array; includes keys without records in this batch. One null in a step
            without a key.
        stream: name of the stream that the records came from.
        key_group: number of the key group that the keys belong to; in a step without a key, of the part.

    """

    def __init__(
        self,
        records: pa.RecordBatch,
        key_indices: npt.NDArray[np.int64],
        keys: pa.Array,
        stream: str,
        key_group: int,
    ) -> None:
        self._records = records
        self.key_indices = key_indices
        self.keys = keys
        self.stream = stream
        self.key_group = key_group
        self.emitted: list[tuple[str, pa.RecordBatch, npt.NDArray[np.int64]]] = []

    def select(
        self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_], *fields: str, **columns: Any
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Records to emit for some rows of the batch, for `process_batch` to return or for `side_output`.

        `rows` are numbers, or for each record of the batch whether it is one of them. `fields` are those that go on as
        they are; `columns` have a value for each of the rows: arrays of NumPy or Arrow, or lists.

        >>> class Fahrenheit(ProcessFunction):
        ...     def process_batch(self, records, ctx):
        ...         celsius = records.column("celsius").to_numpy()
        ...         warm = np.flatnonzero(celsius > 20)
        ...         return ctx.select(warm, "sensor", fahrenheit=celsius[warm] * 1.8 + 32)
        """
        picked: npt.NDArray[np.int64] = (
            np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64, copy=False)
        )
        taken = {name: self._records.column(name).take(pa.array(picked)) for name in fields}
        made = {
            name: column if isinstance(column, pa.Array) else pa.array(column)
            for name, column in columns.items()
        }
        return pa.RecordBatch.from_pydict(taken | made), picked

    def side_output(self, name: str, batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> None:
        """Emit a batch of records to a side output; `rows` names the input row that each came from."""
        self.emitted.append((name, batch, rows))


class ProcessFunction:
    """A function on the records of a stream, with state: by key, or by part where the stream has no key.

    Override `process_record`, or `process_batch` for the vectorised form; with both, the vectorised one is used. A
    function is created once when the job is described and shipped to the workers; attributes other than declared
    states are not restored after a failure; what is kept for a while in a worker, a cache or a client, is declared as a
    `TransientField`.

    What the function emits is declared by the return annotation of the method (`-> Iterator[HeaterCommand]`) or
    by `output=` where the function is applied. Side outputs are declared in the class:
    `side_outputs = {"alarms": Alarm}`.
    """

    side_outputs: ClassVar[Mapping[str, Any]] = {}

    def process_record(self, record: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process one record; yield or return the records to emit."""
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context, /) -> Iterable[Any] | None:
        """A timer of `ctx.key` is due, which was registered with `ctx.timers`; yield or return the records to emit.

        By processing time it is called after the control records of a micro-batch and before its data, by event time
        behind the data, in the order of time, name and key. When it raises, a dead letter tells of the timer, which is
        not called again.
        """
        raise NotImplementedError

    def process_batch(self, records: pa.RecordBatch, ctx: BatchContext, /) -> Any:
        """Process many records of one key group, in order; in a step without a key, of one part and source partition.

        Returns None, or a record batch to emit: with as many rows as `records`, or as a pair
        `(batch, rows)` where `rows[i]` is the row of `records` that row i of `batch` came from, as `ctx.select` makes
        it. A batch may be cut anywhere, so the result must not depend on where it is.
        """
        raise NotImplementedError

    def clear_cache(self) -> None:
        """Drop what the function keeps besides its states; called in every worker after a command `clear-cache`.

        Transient fields are dropped afterwards, also when it raises. Only functions that override it or declare such
        fields take that command.
        """


class ConnectedProcessFunction(ProcessFunction):
    """A process function that is steered by control streams.

    Within one micro-batch `process_control` sees all control records of a key before `process_record` or
    `process_batch` sees any data. With several control streams `ctx.stream` tells them apart. The records of a
    broadcast stream come first, and once in each task of the step: `ctx.keys()` goes through all keys then, and what
    is yielded outside of that loop leaves the step once.
    """

    def process_control(self, record: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Take a control record into account; may emit records like `process_record`."""
        raise NotImplementedError


def is_vectorised(function: ProcessFunction) -> bool:
    """Whether the function brings a `process_batch`."""
    return type(function).process_batch is not ProcessFunction.process_batch


def declared_states(function: ProcessFunction) -> dict[str, KeyedState]:
    """The states that the function's class declares, base classes first."""
    found: dict[str, KeyedState] = {}
    for cls in reversed(type(function).__mro__):
        found.update({name: value for name, value in vars(cls).items() if isinstance(value, KeyedState)})
    return found


def check_function(function: Any, step: str, *, connected: bool) -> ProcessFunction:
    """The function of a step. JobDefinitionError for what cannot be that."""
    if inspect.isclass(function):
        raise JobDefinitionError(
            f"Step {step!r} was given the class {function.__name__}; give an instance: {function.__name__}()."
        )
    wanted = ConnectedProcessFunction if connected else ProcessFunction
    if not isinstance(function, wanted):
        raise JobDefinitionError(f"Step {step!r} needs a {wanted.__name__}, not {type(function).__name__}.")
    if not connected and isinstance(function, ConnectedProcessFunction):
        raise JobDefinitionError(
            f"Step {step!r} has a {type(function).__name__}, which expects control records; connect one first."
        )
    kind = type(function)
    if kind.process_record is ProcessFunction.process_record and not is_vectorised(function):
        raise JobDefinitionError(
            f"{kind.__name__} of step {step!r} overrides neither process_record nor process_batch."
        )
    if connected and kind.process_control is ConnectedProcessFunction.process_control:  # type: ignore[attr-defined]
        raise JobDefinitionError(f"{kind.__name__} of step {step!r} does not override process_control.")
    found: ProcessFunction = function
    return found


def output_type(function: ProcessFunction, declared: Any, step: str) -> RecordType | None:
    """The type of what the function emits: as declared, else by annotation. None: it emits nothing."""
    if declared is not None:
        return record_type(declared)
    kind = type(function)
    if is_vectorised(function) and annotated_result(kind.process_batch) is type(None):
        return None
    return result_record_type(kind.process_record, f"Step {step!r}")


def result_record_type(function: Any, who: str) -> RecordType | None:
    """The record type in a function's return annotation, without Iterator[], list[] or `| None`."""
    hint = annotated_result(function)
    if hint is type(None):
        return None
    if hint is None or hint is Any:
        raise JobDefinitionError(
            f"{who} does not say what it emits. Annotate the function (-> Iterator[MyRecord]) or add output=MyRecord."
        )
    return record_type(hint)


def annotated_result(function: Any) -> Any:
    """The element type of a function's return annotation; NoneType for `-> None`, None when there is none."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
    if hint is None and "return" in getattr(function, "__annotations__", {}):
        return type(None)
    while typing.get_origin(hint) is not None:
        args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        origin = typing.get_origin(hint)
        iterables = (
            list,
            tuple,
            collections.abc.Iterator,
            collections.abc.Iterable,
            collections.abc.Generator,
        )
        if not args or not (
            origin in iterables or str(origin) in ("typing.Union", "<class 'types.UnionType'>")
        ):
            return None
        hint = args[0]
    return hint
