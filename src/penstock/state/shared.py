"""Shared state: state that a step keeps once for all its keys, present and future; the same in every task.

Settings are single values with a history by event time; broadcast state is a mapping. Every task of a step keeps a
copy. All tasks see the same control records in the same order, so all copies are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar, cast, overload

import msgspec
import pyarrow as pa

from penstock.base.declarations import find_declarations
from penstock.errors import SchemaError, StateError
from penstock.state.cursor import Cursor
from penstock.state.history import DEFAULT_VERSIONS, Version, add_version, as_of
from penstock.state.state_spec import StateSpec, fill_defaults, fit_value, json_decoder, value_spec
from penstock.state.stored_blocks import as_bytes, conform
from penstock.state.undo import Undo, take_back, undo_of

__all__ = ["BroadcastState", "Setting", "SharedStates", "declared_shared", "shared_of", "stored_shared"]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


_TIME: Final = pa.timestamp("us", "UTC")


class _Declared:
    """The base of settings and broadcast states: they have a name, and work only inside a step."""

    name = ""
    renamed_from: str | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def check(self) -> None:
        """Raise SchemaError if the state cannot be stored."""
        raise NotImplementedError

    def _outside(self) -> StateError:
        return StateError(f"{self.name!r} has a value only while its step runs.")


class Setting(_Declared, Generic[T]):
    """A value of the whole step, which commands of the kind `set` change.

    Declare it in the body of a process function: `tolerance = Setting(float, 0.5)`. A command with `effective_at` sets
    the value from that event time on; each record sees the value that holds at its own event time.

    Args:
        value_type: as for `ValueState`.
        default: the value that `get` returns until one is set.
        renamed_from: as for `ValueState`.

    """

    has_history: ClassVar[bool] = True
    """Whether commands and control records can set the state from an event time on."""

    @overload
    def __init__(self, value_type: type[T], default: T, *, renamed_from: str | None = None) -> None: ...
    @overload
    def __init__(
        self: Setting[T | None], value_type: type[T], *, renamed_from: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Setting[Any], value_type: Any, default: Any = None, *, renamed_from: str | None = None
    ) -> None: ...
    def __init__(self, value_type: Any, default: Any = None, *, renamed_from: str | None = None) -> None:
        self.renamed_from = renamed_from
        self._value_type = value_type
        self.default = default

    @property
    def set_type(self) -> Any:
        """The type to which a command sets the setting."""
        return self._value_type

    def spec(self) -> StateSpec:
        """Return how the value is stored. Raises SchemaError if it cannot be stored."""
        return value_spec(self.name, self._value_type)

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode a value from JSON. Raises msgspec.DecodeError when it is not of the declared type."""
        return fill_defaults(json_decoder(self._value_type).decode(data))

    def check(self) -> None:
        """Raise SchemaError if the type cannot be stored, or the default is not of that type."""
        spec = self.spec()
        if self.default is not None:
            try:
                fit_value(self.default, spec)
            except TypeError as e:
                raise SchemaError(
                    f"The setting {self.name!r} has the default {self.default!r}: {e}"
                ) from None

    def get(self) -> T:
        """Return the value in force at the event time of the current record, or the default."""
        raise self._outside()

    def set(self, value: T) -> None:  # noqa: ARG002  # bound settings override
        """Set the value for the whole step.

        Raises StateError in code that runs under a key, not for the whole step, and TypeError if the value is not of
        the declared type.
        """
        raise self._outside()


class BroadcastState(_Declared, Generic[K, V]):
    """A mapping shared by the whole step, such as rules by name.

    Declare it in the body of a process function: `rules = BroadcastState(str, Rule)`. All methods of the function can
    read it. Only code that runs for the whole step can change it: `process_control` of a broadcast stream, and handlers
    of commands to the step. Treat values as read-only: a change takes effect only by `put`.

    Args:
        key_type: the type of the keys of the mapping, as for `ValueState`.
        value_type: the type of its values, as for `ValueState`.
        renamed_from: as for `ValueState`.

    """

    @overload
    def __init__(
        self, key_type: type[K], value_type: type[V], *, renamed_from: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: BroadcastState[Any, Any], key_type: Any, value_type: Any, *, renamed_from: str | None = None
    ) -> None: ...
    def __init__(self, key_type: Any, value_type: Any, *, renamed_from: str | None = None) -> None:
        self.renamed_from = renamed_from
        self._key_type = key_type
        self._value_type = value_type

    def specs(self) -> tuple[StateSpec, StateSpec]:
        """Return how keys and values are stored."""
        return value_spec(self.name, self._key_type), value_spec(self.name, self._value_type)

    def check(self) -> None:
        """Raise SchemaError if the types cannot be stored."""
        self.specs()

    def get(self, key: K, default: V | None = None) -> V | None:  # noqa: ARG002  # bound states override
        """Return the value of a key, or the default."""
        raise self._outside()

    def put(self, key: K, value: V) -> None:  # noqa: ARG002  # as above
        """Set the value of a key.

        Raises TypeError if key or value is not of the declared type, and StateError in code that runs under a key, not
        for the whole step.
        """
        raise self._outside()

    def remove(self, key: K) -> None:  # noqa: ARG002  # as above
        """Remove a key, if present. Raises StateError in code that runs under a key, not for the whole step."""
        raise self._outside()

    def items(self) -> Iterable[tuple[K, V]]:
        """Return all keys with their values, in insertion order."""
        raise self._outside()

    def values(self) -> Iterable[V]:
        """Return all values, in the order of their keys."""
        return [value for _, value in self.items()]

    def __contains__(self, key: object) -> bool:
        raise self._outside()

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        raise self._outside()


class _Stored(msgspec.Struct, array_like=True):
    """The stored form: an Arrow IPC stream per state, with the versions of a setting or the entries of a mapping."""

    settings: dict[str, bytes]
    mappings: dict[str, bytes]


class SharedStates:
    """All shared states of a step in one task. `stored` is the result of an earlier `dump`, or None.

    `writable` is whether the running code may change them. Raises StateError when `stored` does not fit the
    declarations.
    """

    def __init__(self, declared: Mapping[str, _Declared], stored: bytes | None) -> None:
        found = _Stored({}, {}) if stored is None else msgspec.msgpack.decode(stored, type=_Stored)
        self.settings: dict[str, list[Version]] = {}
        self._mappings: dict[str, dict[Any, Any]] = {}
        self._declared: Final = declared
        self._changes: Final[list[Undo]] = []
        self.changed = False
        self.writable = False
        for name, state in declared.items():
            try:
                if isinstance(state, Setting):
                    self.settings[name] = _versions(_of(found.settings, state), state.spec())
                elif isinstance(state, BroadcastState):
                    self._mappings[name] = _mapping(_of(found.mappings, state), state.specs())
            except (pa.ArrowException, SchemaError, StateError, ValueError) as e:
                raise StateError(
                    f"The checkpoint's {name!r} does not fit the step's declaration: {e}. Restore the older job, or "
                    "start with a new checkpoint."
                ) from e

    def bind(self, cursor: Cursor) -> dict[str, _Declared]:
        """Return the states bound to a cursor, by name."""
        bound: dict[str, _Declared] = {}
        for name, state in self._declared.items():
            if isinstance(state, Setting):
                bound[name] = _BoundSetting(state, self, cursor)
            else:
                bound[name] = _BoundBroadcastState(cast("BroadcastState[Any, Any]", state), self, cursor)
        return bound

    def is_of(self, declared: Mapping[str, _Declared]) -> bool:
        """Return whether these states have the given declarations, and not those of an earlier job with other types."""
        return len(self._declared) == len(declared) and all(
            self._declared.get(name) is state for name, state in declared.items()
        )

    def mapping(self, name: str) -> dict[Any, Any]:
        """Return the content of a broadcast state."""
        return self._mappings[name]

    def own(self, values: dict[Any, Any]) -> bool:
        """Return whether `values` belongs to one of the states; the cursor logs it for undo."""
        return values is self.settings or any(values is mapping for mapping in self._mappings.values())

    @property
    def timed(self) -> bool:
        """Whether any setting has a value that holds from an event time on."""
        return any(versions and versions[-1].at is not None for versions in self.settings.values())

    def in_force(self) -> dict[str, Any]:
        """Return each setting's value at the cut and the number of entries of each broadcast state, as plain values."""
        found: dict[str, Any] = {}
        for name, state in self._declared.items():
            if name.startswith("__"):
                continue
            if isinstance(state, Setting):
                version = as_of(self.settings[name], None)
                value = state.default if version is None else version.value
                found[name] = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
                later = [v for v in self.settings[name] if v.at is not None]
                if later:
                    found[f"{name} from event time"] = [
                        [str(v.at), msgspec.to_builtins(v.value, str_keys=True, enc_hook=str)] for v in later
                    ]
            else:
                found[name] = len(self._mappings[name])
        return found

    def begin(self) -> None:
        """Mark the point to which `take_back` returns."""
        self._changes.clear()

    def take_back(self) -> None:
        """Take back all changes since `begin`."""
        for change in reversed(self._changes):
            take_back(change)
        self._changes.clear()
        self.changed = False

    def check_may_change(self, name: str, cursor: Cursor) -> None:
        """Raise StateError if the states must not be changed now."""
        if not self.writable or cursor.key is not None:
            raise StateError(
                f"{name!r} belongs to the whole step, and cannot be changed for a single key. Change it in a handler "
                "of the scope 'step', or in process_control of a broadcast stream, before going through ctx.keys()."
            )

    def note(self, cursor: Cursor, undo: Undo) -> None:
        """Note an upcoming change, so that the current record and the round can undo it."""
        cursor.undo.append(undo)
        self._changes.append(undo)
        self.changed = True

    def dump(self) -> bytes:
        """Return all values as bytes; the same history always returns the same bytes."""
        settings, mappings = {}, {}
        for name, state in self._declared.items():
            if isinstance(state, Setting) and self.settings[name]:
                times, values = zip(*self.settings[name], strict=True)
                columns = [pa.array(times, _TIME), state.spec().to_arrow(values)]
                settings[name] = as_bytes(pa.RecordBatch.from_arrays(columns, ["at", "value"]))
            elif isinstance(state, BroadcastState) and self._mappings[name]:
                entries = self._mappings[name]
                specs = zip(state.specs(), (list(entries), list(entries.values())), strict=True)
                columns = [spec.to_arrow(found) for spec, found in specs]
                mappings[name] = as_bytes(pa.RecordBatch.from_arrays(columns, ["key", "value"]))
        return msgspec.msgpack.encode(_Stored(settings, mappings))


def stored_shared(stored: bytes | None) -> dict[str, pa.RecordBatch]:
    """Return the rows of each state in the result of `SharedStates.dump`."""
    if stored is None:
        return {}
    found = msgspec.msgpack.decode(stored, type=_Stored)
    return {
        name: pa.ipc.open_stream(rows).read_next_batch()
        for name, rows in {**found.settings, **found.mappings}.items()
    }


def shared_of(settings: Mapping[str, pa.RecordBatch], mappings: Mapping[str, pa.RecordBatch]) -> bytes | None:
    """Return the stored form for `SharedStates`, from the rows of settings and broadcast states."""
    found = _Stored(
        {name: as_bytes(rows) for name, rows in settings.items()},
        {name: as_bytes(rows) for name, rows in mappings.items()},
    )
    return msgspec.msgpack.encode(found) if settings or mappings else None


def storable(value: Any, spec: StateSpec) -> Any:
    """Return a value converted to the declared type. Raises TypeError if it does not fit or cannot be stored."""
    found = fit_value(value, spec)
    try:
        spec.to_arrow([found])
    except SchemaError as e:
        raise TypeError(f"the value {found!r} of {spec.name!r} cannot be stored: {e}") from None
    return found


def _versions(stored: bytes | None, spec: StateSpec) -> list[Version]:
    if stored is None:
        return []
    times, values = _columns(stored, pa.schema([("at", _TIME), ("value", spec.arrow_type)]))
    return [Version(at, value) for at, value in zip(times.to_pylist(), spec.to_python(values), strict=True)]


def _mapping(stored: bytes | None, specs: tuple[StateSpec, StateSpec]) -> dict[Any, Any]:
    if stored is None:
        return {}
    schema = pa.schema([(name, spec.arrow_type) for name, spec in zip(("key", "value"), specs, strict=True)])
    columns = _columns(stored, schema)
    keys, values = (spec.to_python(column) for spec, column in zip(specs, columns, strict=True))
    return dict(zip(keys, values, strict=True))


def _columns(stored: bytes, schema: pa.Schema) -> list[pa.Array]:
    return conform(pa.ipc.open_stream(stored).read_next_batch(), schema).columns  # type: ignore[no-any-return]  # pyarrow does not annotate it


def _of(stored: Mapping[str, bytes], state: _Declared) -> bytes | None:
    """Return the stored bytes of a state, under its name or its earlier name."""
    found = stored.get(state.name)
    return stored.get(state.renamed_from) if found is None and state.renamed_from else found


class _BoundSetting(Setting[Any]):
    """A setting at run time."""

    def __init__(self, declared: Setting[Any], states: SharedStates, cursor: Cursor) -> None:
        super().__init__(None, declared.default)
        self.name = declared.name
        self._spec = declared.spec()
        self._states = states
        self._cursor = cursor

    def get(self) -> Any:
        versions = self._states.settings[self.name]
        if not versions:
            return self.default
        found = as_of(versions, self._cursor.time)
        return self.default if found is None else found.value

    def set(self, value: Any) -> None:
        self._states.check_may_change(self.name, self._cursor)
        value = None if value is None else storable(value, self._spec)
        before = self._states.settings[self.name]
        self._states.note(self._cursor, (self._states.settings, self.name, before))
        version = Version(self._cursor.time, value)
        self._states.settings[self.name] = add_version(before, version, DEFAULT_VERSIONS)


class _BoundBroadcastState(BroadcastState[Any, Any]):
    """A broadcast state at run time."""

    def __init__(self, declared: BroadcastState[Any, Any], states: SharedStates, cursor: Cursor) -> None:
        super().__init__(None, None)
        self.name = declared.name
        self._key_spec, self._value_spec = declared.specs()
        self._states = states
        self._cursor = cursor
        self._values = states.mapping(declared.name)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._values.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self._states.check_may_change(self.name, self._cursor)
        key, value = storable(key, self._key_spec), storable(value, self._value_spec)
        self._states.note(self._cursor, undo_of(self._values, key))
        self._values[key] = value

    def remove(self, key: Any) -> None:
        self._states.check_may_change(self.name, self._cursor)
        if key in self._values:
            self._states.note(self._cursor, undo_of(self._values, key))
            del self._values[key]

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._values.items()

    def values(self) -> Iterable[Any]:
        return self._values.values()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def declared_shared(owner: type) -> dict[str, _Declared]:
    """Return the settings and broadcast states that a class declares, base classes first."""
    return find_declarations(owner, _Declared)
