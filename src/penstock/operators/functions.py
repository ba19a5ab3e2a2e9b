"""Process functions: user code with keyed state, for one record or one batch of records at a time."""

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

__all__ = ["BatchContext", "CommandContext", "ConnectedProcessFunction", "Context", "ProcessFunction"]


class Context:
    """The context of the record that a function processes: its key, its times, timers and side outputs.

    Attributes:
        key: the record's key; None in code that runs for the whole step, and in steps without a key.
        stream: the name of the stream that the record came from.
        key_group: the number of the key's key group; in a step without a key, the number of the part.
        timers: the timers of the key: `register(at, name)` and `delete(at, name)`. Requires `on_timer`.
        watermark: the watermark before the records of this micro-batch, or after them in `on_timer` for an event-time
            timer. None before the first watermark.
        event_time: the record's event time, if no field of the record holds it or the step keeps values by event
            time. For a control record, the time from which it is effective; None for the cut. Emitted records have
            the same event time, if a later step uses event time.

    """

    __slots__ = ("_cursor", "_emitted", "_group", "_keys", "_side_outputs", "group_of", "stream")

    def __init__(self, cursor: Cursor, side_outputs: Iterable[str]) -> None:
        self.group_of: Callable[[Any], int] | None = None
        self.stream = ""
        self._group = 0
        self._cursor = cursor
        self._side_outputs = frozenset(side_outputs)
        self._emitted: Any = None
        self._keys: Callable[[], Iterator[Any]] | None = None

    @property
    def key(self) -> Any:
        """The key of the current record."""
        return self._cursor.key

    @property
    def key_group(self) -> int:
        """The number of the key group, or of the part."""
        if self.group_of is None or self._cursor.key is None:
            return self._group
        return self.group_of(self._cursor.key)

    @key_group.setter
    def key_group(self, number: int) -> None:
        self._group = number

    @property
    def event_time(self) -> dt.datetime | None:
        """The event time of the current record."""
        cursor = self._cursor
        if cursor.time is None and cursor.time_ms is not None:
            return nearest_instant(cursor.time_ms)
        return cursor.time

    @property
    def watermark(self) -> dt.datetime | None:
        """The watermark. At the end of time it is the latest possible datetime."""
        at_ms = self._cursor.watermark_ms
        return None if at_ms is None else nearest_instant(at_ms)

    @property
    def timers(self) -> Timers:
        """The timers of the current key."""
        timers = self._cursor.timers
        if timers is None:
            raise StateError("ctx.timers is for functions that override on_timer; this one does not.")
        return timers

    def keys(self) -> Iterator[Any]:
        """Iterate over all keys with state; within the loop, states are those of the current key.

        Only for code that runs for the whole step: `process_control` of a broadcast stream, and handlers of commands to
        the step; raises StateError elsewhere. Each task of the step iterates over its own keys, and all tasks together
        over all keys.
        """
        if self._keys is None:
            raise StateError(
                "ctx.keys() is for code that runs for the whole step: process_control of a broadcast stream, and "
                "handlers with scope='step'."
            )
        return self._keys()

    def parts(self) -> Iterator[int]:
        """Iterate over the numbers of all parts with state, in a step without a key.

        Within the loop, states are those of the current part. Only for code that runs for the whole step, like `keys`
        in a step with a key; raises StateError elsewhere.
        """
        raise StateError("ctx.parts() is for steps without a key; this one has keys, see ctx.keys().")

    def side_output(self, name: str, record: Any) -> None:
        """Emit a record to a side output. Raises ValueError if the function does not declare it in `side_outputs`."""
        if name not in self._side_outputs:
            known = ", ".join(sorted(self._side_outputs)) or "none"
            raise ValueError(f"the side output {name!r} is not declared; declared are: {known}")
        self._emitted.side_output(name, record)

    def enter(self, stream: str, emitted: Any) -> None:
        """Set the stream and the outputs. Called by the step before the records of a block."""
        self.stream = stream
        self._emitted = emitted

    def open_keys(self, keys: Callable[[], Iterator[Any]]) -> None:
        """Set the iterator of `keys`. Called by the step before code that runs for the whole step."""
        self._keys = keys


class CommandContext(Context):
    """The context of a command handler.

    Attributes:
        command: the command, with its id, kind, target, version, sender and times.

    """

    __slots__ = ("_replies", "command")

    def __init__(self, cursor: Cursor, side_outputs: Iterable[str], command: Command) -> None:
        super().__init__(cursor, side_outputs)
        self.command = command
        self._replies: list[tuple[Any, Any]] = []

    def reply(self, answer: Any) -> None:
        """Add an answer to the command's receipt: any value that JSON can hold.

        A reply outside of a key appears once, not once per task.
        """
        reply = (msgspec.to_builtins(self._replies_for()), msgspec.to_builtins(answer, str_keys=True))
        # An answer that cannot be encoded raises here, within the handler at fault.
        msgspec.msgpack.encode(reply)
        self._replies.append(reply)

    @property
    def replies(self) -> list[tuple[Any, Any]]:
        """The replies so far, each with its key; in a step without a key, with its part."""
        return self._replies

    def _replies_for(self) -> Any:
        return self._cursor.key


class _WithoutKey(Context):
    """The differences in a step without a key: the cursor's key is that of a part."""

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
    """The context of a record in a step without a key."""

    __slots__ = ()


class PartCommandContext(_WithoutKey, CommandContext):
    """The context of a command in a step without a key."""

    __slots__ = ()

    def _replies_for(self) -> int | None:
        return None if self._cursor.key is None else self.key_group


class BatchContext:
    """The context of the batch of records that a vectorised function processes.

    Attributes:
        key_indices: the index of each record's key (int64), for access to state columns.
        keys: the keys by index, as an Arrow array, including keys without records in this batch. In a step without a
            key, a single null.
        stream: the name of the stream that the records came from.
        key_group: the number of the keys' key group; of the first, if a batch has records of several. In a step without
            a key, the number of the part.

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
        """Build a batch of records to emit for some rows, to return from `process_batch` or pass to `side_output`.

        `rows` are row numbers, or a boolean mask of the batch. `fields` are copied unchanged. `columns` are new fields
        with one value per selected row: NumPy arrays, Arrow arrays or lists.

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
        """Emit a batch of records to a side output; `rows[i]` is the input row that record i came from."""
        self.emitted.append((name, batch, rows))


class ProcessFunction:
    """A function on the records of a stream, with state by key, or by part if the stream has no key.

    Override `process_record`, or `process_batch` for the vectorised form, which takes precedence. The function is
    created once, when the job is described, and shipped to the workers. Only declared states are restored after a
    failure, other attributes are not. Declare anything that a worker keeps temporarily, such as a cache or a client, as
    a `TransientField`.

    Declare the type of emitted records by the return annotation of the method (`-> Iterator[HeaterCommand]`) or by
    `output=` where the function is applied. Declare side outputs in the class: `side_outputs = {"alarms": Alarm}`.
    """

    side_outputs: ClassVar[Mapping[str, Any]] = {}

    def process_record(self, record: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process one record; yield or return the records to emit."""
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context, /) -> Iterable[Any] | None:
        """Handle a timer of `ctx.key` that is due, registered with `ctx.timers`; yield or return the records to emit.

        Processing-time timers fire after the control records of a micro-batch and before its data, event-time timers
        after the data, both in the order of time, name and key. If it raises, the timer becomes a dead letter and does
        not fire again.
        """
        raise NotImplementedError

    def process_batch(self, records: pa.RecordBatch, ctx: BatchContext, /) -> Any:
        """Process many records of one key group, in order; in a step without a key, of one part and source partition.

        In real time they may be of all key groups of a slot.

        Return None, or a record batch to emit that has one row per row of `records`, or a pair `(batch, rows)` where
        `rows[i]` is the row of `records` that row i of `batch` came from, such as `ctx.select` returns. Batches may be
        split anywhere, so the result must not depend on their boundaries.
        """
        raise NotImplementedError

    def clear_cache(self) -> None:
        """Drop all that the function keeps besides its states. The command `clear-cache` calls it in every worker.

        Transient fields are dropped afterwards, even if it raises. Only functions that override it or declare
        transient fields accept that command.
        """


class ConnectedProcessFunction(ProcessFunction):
    """A process function that control streams steer.

    Within one micro-batch, `process_control` sees all control records of a key before `process_record` or
    `process_batch` sees any data. With several control streams, `ctx.stream` is the name of the record's stream.
    Records of a broadcast stream come first, once in each task of the step: `ctx.keys()` then iterates over all keys,
    and records yielded outside of that loop are emitted once, not once per task.
    """

    def process_control(self, record: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process a control record; may yield or return records to emit, like `process_record`."""
        raise NotImplementedError


def is_vectorised(function: ProcessFunction) -> bool:
    """Return whether the function overrides `process_batch`."""
    return type(function).process_batch is not ProcessFunction.process_batch


def check_function(function: Any, step: str, *, connected: bool) -> ProcessFunction:
    """Return the function of a step. Raises JobDefinitionError when a step cannot use it."""
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
    if connected and kind.process_control is ConnectedProcessFunction.process_control:  # type: ignore[attr-defined]  # a connected function has it
        raise JobDefinitionError(f"{kind.__name__} of step {step!r} does not override process_control.")
    found: ProcessFunction = function
    return found


def output_type(function: ProcessFunction, declared: Any, step: str) -> RecordType | None:
    """Return the record type that the function emits, as declared or else annotated; None if it emits nothing."""
    if declared is not None:
        return record_type(declared)
    kind = type(function)
    if is_vectorised(function) and read_result_type(kind.process_batch) is type(None):
        return None
    return result_record_type(kind.process_record, f"Step {step!r}")


def result_record_type(function: Any, who: str) -> RecordType | None:
    """Return the record type in a function's return annotation, without Iterator[], list[] or `| None`.

    Returns None for `-> None`. Raises JobDefinitionError without an annotation.
    """
    hint = read_result_type(function)
    if hint is type(None):
        return None
    if hint is None or hint is Any:
        raise JobDefinitionError(
            f"{who} does not say what it emits. Annotate the function (-> Iterator[MyRecord]) or add output=MyRecord."
        )
    return record_type(hint)


def read_result_type(function: Any) -> Any:
    """Return the element type of a function's return annotation; NoneType for `-> None`, None without one."""
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
