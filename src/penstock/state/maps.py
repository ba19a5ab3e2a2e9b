"""Map state: a mapping per key, in insertion order."""

from __future__ import annotations

import functools
import itertools
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.types import CustomColumnCodec
from penstock.state.cursor import Cursor
from penstock.state.lists import column_of_parts, elements, offsets_of, parts_of_column, split_elements
from penstock.state.state_column import StateColumn
from penstock.state.state_spec import StateSpec, fill_defaults, fit_value, value_spec
from penstock.state.ttl import Ttl
from penstock.state.undo import ABSENT, Undo
from penstock.state.values import BoundState, CheckedState, KeyedState

__all__ = ["BoundMapState", "CheckedMapState", "MapState"]

K = TypeVar("K")
V = TypeVar("V")


class MapState(KeyedState, Generic[K, V]):
    """A mapping per key. A key with an empty mapping uses no storage.

    Declare it in the body of a process function; in the function's methods it refers to the mapping of the current key.
    The keys inside of the mapping are called map keys.

    >>> class Stock(ProcessFunction):
    ...     pieces = MapState(str, int)
    ...     def process_record(self, record, ctx):
    ...         self.pieces.put(record.article, self.pieces.get(record.article, 0) + record.count)

    Entries are in insertion order; a new value leaves its entry in place. Treat values as read-only: a change takes
    effect only by `put`. The cost of `get` and `put` does not depend on the size of the mapping; the first `remove` in
    a record copies the mapping.

    Args:
        key_type: the type of map keys, as for `ValueState`. It must be hashable, so a record type must be frozen.
        value_type: the type of the values, as for `ValueState`.
        ttl: how long the whole mapping is kept after it was last touched, see `Ttl`; without one, forever.
        renamed_from: as for `ValueState`.

    """

    @overload
    def __init__(
        self,
        key_type: type[K],
        value_type: type[V],
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: MapState[Any, Any],
        key_type: Any,
        value_type: Any,
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None: ...
    def __init__(
        self, key_type: Any, value_type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        self._key_type = key_type
        self._value_type = value_type
        self.ttl = ttl
        self.renamed_from = renamed_from

    @property
    def set_type(self) -> Any:
        """The type to which a command sets the state: a mapping."""
        key: Any = self._key_type
        value: Any = self._value_type
        return dict[key, value]

    def spec(self) -> StateSpec:
        """Return how the state is stored: as an Arrow map, in the order of its entries."""
        key = value_spec(self._checked_name(), self._key_type)
        if not _has_hash(key.python_type):
            raise SchemaError(
                f"{self._key_type!r} is not hashable, so it cannot be the type of map keys. Use a frozen class or a "
                "scalar."
            )
        value = value_spec(self.name, self._value_type)
        arrow_type = pa.map_(key.arrow_type, value.arrow_type)
        return StateSpec(self.name, _MapForm(key, value), arrow_type, None, self.ttl)

    def value_of(self, data: bytes | msgspec.Raw) -> Any:
        """Decode a mapping from a JSON object or an array of pairs. Raises msgspec.DecodeError when it does not fit."""
        found = fill_defaults(_decoder(self._key_type, self._value_type).decode(data))
        return dict(found) if isinstance(found, list) else found

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    @overload
    def get(self, key: K, default: None) -> V | None: ...
    def get(self, key: K, default: V | None = None) -> V | None:  # noqa: ARG002  # bound states override
        """Return the value of a map key, or the default."""
        raise self._outside()

    @overload
    def put(self, key: K, value: V) -> None: ...
    @overload
    def put(self, key: npt.NDArray[np.int64], value: Any) -> None: ...
    def put(self, key: Any, value: Any) -> None:  # noqa: ARG002  # as above
        """Set the value of a map key. Raises TypeError if the map key or the value is not of the declared type.

        In `process_batch`, with distinct slots and a list of dicts: set the mappings of the keys in these slots.
        """
        raise self._outside()

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:  # noqa: ARG002  # as above
        """Set the values of several map keys. Raises TypeError like `put`."""
        raise self._outside()

    def set(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] | None) -> None:  # noqa: ARG002  # as above
        """Replace the whole mapping; None clears it. Raises TypeError like `put`."""
        raise self._outside()

    def remove(self, key: K) -> None:  # noqa: ARG002  # as above
        """Remove a map key and its value, if present."""
        raise self._outside()

    def items(self) -> list[tuple[K, V]]:
        """Return a new list of all entries, in insertion order."""
        raise self._outside()

    def keys(self) -> list[K]:
        """Return a new list of all map keys, in insertion order."""
        return [key for key, _ in self.items()]

    def values(self) -> list[V]:
        """Return a new list of all values, in the order of their map keys."""
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        """Return whether the mapping has no entries."""
        return not len(self)

    def __contains__(self, key: object) -> bool:
        raise self._outside()

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> int:
        raise self._outside()


# The initial value, for a mapping that was not copied: a place in the undo log, the entry there, and the copy.
_NO_COPY: Final[tuple[int, Undo | None, object]] = (0, None, None)


class BoundMapState(BoundState, MapState[Any, Any]):
    """A map state at run time. The mapping of a key is changed in place; each change of an entry is logged for undo.

    The position of a removed entry can only be restored from the original mapping, so the first removal in a record
    copies the mapping.
    """

    __slots__ = ("_copied", "_exact_key", "_exact_value", "_key_spec", "_value_spec")

    def __init__(self, column: StateColumn, cursor: Cursor) -> None:
        super().__init__(column, cursor)
        form = column.spec.python_type
        self._key_spec: StateSpec = form.key
        self._value_spec: StateSpec = form.value
        self._exact_key = self._key_type = form.key.python_type
        self._exact_value = self._value_type = form.value.python_type
        self._copied = _NO_COPY

    def get(self, key: Any, default: Any = None) -> Any:  # noqa: D102  # as declared
        held = self._held()
        return default if held is None else held.get(key, default)

    def put(self, key: Any, value: Any) -> None:  # noqa: D102  # as declared
        if type(key) is not self._exact_key:
            if isinstance(key, np.ndarray):
                self._put_columns(key, value)
                return
            key = fit_value(key, self._key_spec)
        if type(value) is not self._exact_value:
            value = fit_value(value, self._value_spec)
        held = self._held()
        if held is None:
            self._replace({key: value})
            return
        self._note_undo((held, key, held.get(key, ABSENT)))
        held[key] = value
        self._dirty[self._cursor.key] = None

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:  # noqa: D102  # as declared
        for key, value in self._fit(entries).items():
            self.put(key, value)

    def set(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None) -> None:  # noqa: D102  # as declared
        self._replace(None if entries is None else self._fit(entries))

    def remove(self, key: Any) -> None:  # noqa: D102  # as declared
        held = self._held()
        if held and key in held:
            del self._own(held)[key]

    def items(self) -> list[tuple[Any, Any]]:  # noqa: D102  # as declared
        return list((self._held() or {}).items())

    def __contains__(self, key: object) -> bool:
        return key in (self._held() or ())

    def __len__(self) -> int:
        return len(self._held() or ())

    def _own(self, held: dict[Any, Any]) -> dict[Any, Any]:
        """Return the mapping of the current key as a copy that only the current record has changed."""
        undo = self._cursor.undo
        place, note, copied = self._copied
        if held is copied and place < len(undo) and undo[place] is note:
            return held
        own = held.copy()
        self._replace(own)
        self._copied = (len(undo) - 1, undo[-1], own)
        return own

    def _fit(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        exact_key, exact_value = self._exact_key, self._exact_value
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        return {
            key if type(key) is exact_key else fit_value(key, self._key_spec): value
            if type(value) is exact_value
            else fit_value(value, self._value_spec)
            for key, value in pairs
        }


class CheckedMapState(CheckedState, BoundMapState):
    """A map state that checks at once whether new entries can be stored."""

    __slots__ = ()

    def put(self, key: Any, value: Any) -> None:  # noqa: D102  # as declared
        if isinstance(key, np.ndarray):
            self._put_columns(key, value)
        else:
            ((key, value),) = self._fit([(key, value)]).items()
            super().put(key, value)

    def _fit(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        found = super()._fit(entries)
        # Only the new entries: the others were checked when they were put.
        self._column.check_value(found)
        return found


MapState.run_time = (BoundMapState, CheckedMapState)


@dataclass(frozen=True)
class _MapForm(CustomColumnCodec):
    """Mappings as an Arrow map in insertion order; an empty mapping is stored as null."""

    key: StateSpec
    value: StateSpec

    def parts(self) -> dict[str, StateSpec]:
        return {"key": self.key, "value": self.value}

    def to_python(self, column: pa.Array) -> list[Any]:
        entries = elements(column)
        keys, values = (
            parts_of_column(spec, part)
            for spec, part in zip((self.key, self.value), entries.flatten(), strict=True)
        )
        pairs = list(zip(keys, values, strict=True))
        return [None if run is None else dict(run) for run in split_elements(pairs, column)]

    def to_arrow(self, values: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        found = [value for value in values if value]
        keys = column_of_parts(self.key, list(itertools.chain.from_iterable(found)))
        items = column_of_parts(
            self.value, list(itertools.chain.from_iterable(value.values() for value in found))
        )
        return pa.MapArray.from_arrays(offsets_of(values), keys, items)


def _has_hash(kind: Any) -> bool:
    """Return whether values of a type can be keys of a dict."""
    kind = typing.get_origin(kind) or kind
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return kind.__hash__ is not None


@functools.lru_cache(maxsize=256)
def _decoder(key_type: Any, value_type: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of mappings from JSON."""
    key: Any = value_spec("", key_type).python_type
    value: Any = value_spec("", value_type).python_type
    pairs = list[tuple[key, value]]
    try:
        return msgspec.json.Decoder(dict[key, value] | pairs | None)
    except TypeError:
        # The names in a JSON object are text, which cannot be keys of this type.
        return msgspec.json.Decoder(pairs | None)
