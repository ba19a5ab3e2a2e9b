"""Shared state: what a step keeps once for all its keys, the same in every task, also for keys that appear later.

Settings are single values with a history by event time; broadcast state is a mapping. Every task of a step keeps a
copy, and since all tasks see the same control records in the same order, all copies are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar, cast, overload

import msgspec
import pyarrow as pa

from penstock.errors import SchemaError, StateError
from penstock.state.cursor import Cursor
from penstock.state.history import DEFAULT_VERSIONS, Version, as_of, revised
from penstock.state.state_spec import StateSpec, completed, fitted, json_decoder, value_spec
from penstock.state.stored_blocks import as_bytes, conformed
from penstock.state.undo import undo_of

__all__ = ["BroadcastState", "Setting", "SharedStates", "declared_shared", "shared_of", "stored_shared"]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


_TIME: Final = pa.timestamp("us", "UTC")


class _Declared:
    """What settings and broadcast states have in common: a name, and that they work only inside a step."""

    name = ""
    renamed_from: str | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def check(self) -> None:
        """SchemaError when it cannot be stored."""
        raise NotImplementedError

    def _outside(self) -> StateError:
        return StateError(f"{self.name!r} has a value only while its step runs.")


class Setting(_Declared, Generic[T]):
    """A value of the whole step, which commands of the kind `set` change.

    Declare it in the body of a process function: `tolerance = Setting(float, 0.5)`. A command with `effective_at`
    gives it a value from that event time on; records are judged by what holds at their own event time.

    Args:
        value_type: as for `ValueState`.
        default: what `get` gives as long as nothing was set.

    """

    has_history: ClassVar[bool] = True
    """Whether commands and control records may set it from an event time on."""

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
        """The type of what a command sets it to."""
        return self._value_type

    def spec(self) -> StateSpec:
        """How the value is stored."""
        return value_spec(self.name, self._value_type)

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """A value from JSON. msgspec.DecodeError when it is not of the declared type."""
        return completed(json_decoder(self._value_type).decode(data))

    def check(self) -> None:
        """SchemaError when the type cannot be stored, or the default is not of it."""
        spec = self.spec()
        if self.default is not None:
            try:
                fitted(self.default, spec)
            except TypeError as e:
                raise SchemaError(
                    f"The setting {self.name!r} has the default {self.default!r}: {e}"
                ) from None

    def get(self) -> T:
        """The value in force."""
        raise self._outside()

    def set(self, value: T) -> None:  # noqa: ARG002  # bound settings override
        """Set it for the whole step. Only where code runs for the whole step, not under a key."""
        raise self._outside()


class BroadcastState(_Declared, Generic[K, V]):
    """A mapping that the whole step shares, such as rules by their names.

    Declare it in the body of a process function: `rules = BroadcastState(str, Rule)`. All methods may read it. It is
    changed where code runs for the whole step: in `process_control` of a broadcast stream, and in handlers of commands
    to the step. Treat values as read-only: a change counts only when it is `put`.
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
        """How keys and values are stored."""
        return value_spec(self.name, self._key_type), value_spec(self.name, self._value_type)

    def check(self) -> None:
        """SchemaError when the types cannot be stored."""
        self.specs()

    def get(self, key: K, default: V | None = None) -> V | None:  # noqa: ARG002  # bound states override
        """The value of a key, or the default."""
        raise self._outside()

    def put(self, key: K, value: V) -> None:  # noqa: ARG002  # as above
        """Set the value of a key. TypeError when key or value are not of the declared types."""
        raise self._outside()

    def remove(self, key: K) -> None:  # noqa: ARG002  # as above
        """Remove a key, if it is there."""
        raise self._outside()

    def items(self) -> Iterable[tuple[K, V]]:
        """All keys with their values, in the order in which the keys came."""
        raise self._outside()

    def values(self) -> Iterable[V]:
        """All values, in the order of their keys."""
        return [value for _, value in self.items()]

    def __contains__(self, key: object) -> bool:
        raise self._outside()

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, _ in self.items()])

    def __len__(self) -> int:
        raise self._outside()


class _Stored(msgspec.Struct, array_like=True):
    """Each state as an Arrow IPC stream: of a setting its versions, of a broadcast state its entries."""

    settings: dict[str, bytes]
    mappings: dict[str, bytes]


class SharedStates:
    """All shared states of a step in one task. `stored` is what an earlier `dump` gave, or None.

    `writable` says whether the code that runs may change them.
    """

    def __init__(self, declared: Mapping[str, _Declared], stored: bytes | None) -> None:
        found = _Stored({}, {}) if stored is None else msgspec.msgpack.decode(stored, type=_Stored)
        self.settings: dict[str, list[Version]] = {}
        self._mappings: dict[str, dict[Any, Any]] = {}
        self._declared: Final = declared
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
                    f"The checkpoint's {name!r} does not fit what the step declares: {e}. Restore the older job, or "
                    "start with a new checkpoint."
                ) from e

    def bind(self, cursor: Cursor) -> dict[str, _Declared]:
        """The states at work under a cursor, by name."""
        bound: dict[str, _Declared] = {}
        for name, state in self._declared.items():
            if isinstance(state, Setting):
                bound[name] = _BoundSetting(state, self, cursor)
            else:
                bound[name] = _BoundBroadcastState(cast("BroadcastState[Any, Any]", state), self, cursor)
        return bound

    def is_of(self, declared: Mapping[str, _Declared]) -> bool:
        """Whether these are the states as declared here, and not by an earlier job with other types."""
        return len(self._declared) == len(declared) and all(
            self._declared.get(name) is state for name, state in declared.items()
        )

    def mapping(self, name: str) -> dict[Any, Any]:
        """The content of a broadcast state."""
        return self._mappings[name]

    def own(self, values: dict[Any, Any]) -> bool:
        """Whether these are the values of one of the states, as the cursor notes them."""
        return values is self.settings or any(values is mapping for mapping in self._mappings.values())

    @property
    def timed(self) -> bool:
        """Whether a setting holds from an event time on."""
        return any(versions and versions[-1].at is not None for versions in self.settings.values())

    def in_force(self) -> dict[str, Any]:
        """Every setting as it is at the cut, and how many entries every broadcast state has; plain values."""
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

    def may_change(self, name: str, cursor: Cursor) -> None:
        """Raise StateError where the states must not be changed."""
        if not self.writable or cursor.key is not None:
            raise StateError(
                f"{name!r} belongs to the whole step, and cannot be changed for a single key. Change it in a handler "
                "of the scope 'step', or in process_control of a broadcast stream, before going through ctx.keys()."
            )
        self.changed = True

    def dump(self) -> bytes:
        """All values as bytes, the same for the same history."""
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
    """The rows of each state in what `SharedStates.dump` gave."""
    if stored is None:
        return {}
    found = msgspec.msgpack.decode(stored, type=_Stored)
    return {
        name: pa.ipc.open_stream(rows).read_next_batch()
        for name, rows in {**found.settings, **found.mappings}.items()
    }


def shared_of(settings: Mapping[str, pa.RecordBatch], mappings: Mapping[str, pa.RecordBatch]) -> bytes | None:
    """What `SharedStates` takes, from the rows of settings and of broadcast states."""
    found = _Stored(
        {name: as_bytes(rows) for name, rows in settings.items()},
        {name: as_bytes(rows) for name, rows in mappings.items()},
    )
    return msgspec.msgpack.encode(found) if settings or mappings else None


def storable(value: Any, spec: StateSpec) -> Any:
    """A value as one of the declared type that can be stored. TypeError when it is none."""
    found = fitted(value, spec)
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
    return conformed(pa.ipc.open_stream(stored).read_next_batch(), schema).columns  # type: ignore[no-any-return]


def _of(stored: Mapping[str, bytes], state: _Declared) -> bytes | None:
    """What is stored of a state, if only under the name that it had before."""
    found = stored.get(state.name)
    return stored.get(state.renamed_from) if found is None and state.renamed_from else found


class _BoundSetting(Setting[Any]):
    """A setting at work."""

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
        self._states.may_change(self.name, self._cursor)
        value = None if value is None else storable(value, self._spec)
        before = self._states.settings[self.name]
        self._cursor.undo.append((self._states.settings, self.name, before))
        version = Version(self._cursor.time, value)
        self._states.settings[self.name] = revised(before, version, DEFAULT_VERSIONS)


class _BoundBroadcastState(BroadcastState[Any, Any]):
    """A broadcast state at work."""

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
        self._states.may_change(self.name, self._cursor)
        key, value = storable(key, self._key_spec), storable(value, self._value_spec)
        self._cursor.undo.append(undo_of(self._values, key))
        self._values[key] = value

    def remove(self, key: Any) -> None:
        self._states.may_change(self.name, self._cursor)
        if key in self._values:
            self._cursor.undo.append(undo_of(self._values, key))
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
    """The settings and broadcast states that a class declares, base classes first."""
    found: dict[str, _Declared] = {}
    for cls in reversed(owner.__mro__):
        found.update({name: value for name, value in vars(cls).items() if isinstance(value, _Declared)})
    return found
