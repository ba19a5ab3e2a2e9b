"""Nested values: records in records, lists and maps, as builtins of Python and as columns."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.records.halves import work_by_halves
from penstock.records.year_bounds import beyond_years

__all__ = [
    "Completion",
    "find_unreadable_rows",
    "fold_name",
    "make_completion",
    "match_names",
    "mixes_times",
    "to_builtins",
    "without_none",
]

_BUILTIN: Final = (bytes, dt.datetime, dt.date, decimal.Decimal)

Completion: TypeAlias = Callable[[Any, bool], None]
"""A function that adds the defaults to the records in a value, which it changes in place.

The flag says whether the value is of another schema: then names match without case and underscores, too, and a field
that may be null is null where it is missing.
"""


def to_builtins(values: Iterable[Any]) -> list[Any]:
    """Convert nested values to builtins of Python; records become dictionaries."""
    found: list[Any] = msgspec.to_builtins(list(values), builtin_types=_BUILTIN, order="deterministic")
    return found


def fold_name(name: str) -> str:
    """Return a name without case and underscores, so that `sensor_id` matches `sensorID`."""
    return name.replace("_", "").lower()


def match_names(wanted: Sequence[str], there: Iterable[str]) -> list[str | None]:
    """Return for each name the existing one that matches it: exactly, or else without case and underscores.

    It is None if no name matches. Raises SchemaError if several match.

    >>> match_names(["sensor_id", "room"], ["sensorId"])
    ['sensorId', None]
    """
    names = list(there)
    others: dict[str, list[str]] = {}
    for name in names:
        if name not in wanted:
            others.setdefault(fold_name(name), []).append(name)
    found: list[str | None] = []
    for name in wanted:
        matching = [name] if name in names else others.get(fold_name(name), [])
        if len(matching) > 1:
            raise SchemaError(f"the fields {' and '.join(map(repr, matching))} both match the field {name!r}")
        found.append(matching[0] if matching else None)
    return found


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type hint without its `| None`, and whether it had one."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(args) == 1 and len(args) < len(typing.get_args(hint)):
            return args[0], True
    return hint, False


# --- Defaults ------------------------------------------------------------------------------------------------


def make_completion(hint: Any) -> Completion | None:
    """Return a function that adds missing defaults to values of a type, or None if the type has no records.

    A class of the user's has defaults that its values may lack as dictionaries: where a schema does not have the
    field, and where msgspec leaves them to the class.
    """
    kind, _ = without_none(hint)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple, set, frozenset) and args:
        return _each(make_completion(args[0]), list, iter)
    if origin is dict:
        return _each(make_completion(args[1]), dict, dict.values)
    return _of_record(kind) if _is_record(kind) else None


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _each(
    inner: Completion | None, container: type, items: Callable[[Any], Iterable[Any]]
) -> Completion | None:
    if inner is None:
        return None

    def complete(value: Any, fold: bool) -> None:
        if isinstance(value, container):
            for item in items(value):
                inner(item, fold)

    return complete


def _of_record(kind: type) -> Completion:
    fields = [(name, default, without_none(hint)[1]) for name, hint, default in _fields_of(kind)]
    inside = [(name, make_completion(hint)) for name, hint, _ in _fields_of(kind)]
    nested = [(name, inner) for name, inner in inside if inner is not None]
    names = {name for name, *_ in fields}

    def complete(value: Any, fold: bool) -> None:
        if not isinstance(value, dict):
            return
        if not names <= value.keys():
            if fold:
                _rename(value, names)
            for name, default, may_be_null in fields:
                if name in value:
                    continue
                if default is not None:
                    value[name] = default()
                elif fold and may_be_null:
                    value[name] = None
        for name, inner in nested:
            inner(value.get(name), fold)

    return complete


def _rename(value: dict[str, Any], names: Iterable[str]) -> None:
    """Give the values of a dictionary the names that they match without case and underscores."""
    others = {fold_name(name): name for name in value if name not in names}
    for name in names:
        if name not in value and fold_name(name) in others:
            value[name] = value.pop(others[fold_name(name)])


def _fields_of(kind: type) -> Iterable[tuple[str, Any, Callable[[], Any] | None]]:
    """Yield each field of a class with its type, and a function that makes its default as a builtin."""
    hints = _hints_of(kind)
    missing: Any
    fields: Iterable[Any]
    if dataclasses.is_dataclass(kind):
        missing, fields = dataclasses.MISSING, [field for field in dataclasses.fields(kind) if field.init]
    else:
        missing, fields = msgspec.NODEFAULT, msgspec.structs.fields(kind)
    for field in fields:
        make: Callable[[], Any] | None = None
        if field.default is not missing:
            make = _returning(field.default)
        elif field.default_factory is not missing:
            make = field.default_factory
        yield field.name, hints[field.name], None if make is None else _as_builtin(make)


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def _as_builtin(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: to_builtins([make()])[0]


# --- Columns -------------------------------------------------------------------------------------------------


def find_unreadable_rows(column: pa.Array, hint: Any, read: Callable[[pa.Array], Any]) -> Mapping[int, str]:
    """Return why some rows of a nested column cannot be read as values of a type; `read` reads a column.

    Columns of files and messages may hold what the type does not have: nulls within records and lists, other members
    of an enumeration, and times beyond Python's.
    """
    if _is_readable(column, hint):
        return {}
    found: dict[int, str] = {}

    def work(low: int, high: int) -> None:
        read(column.slice(low, high - low))

    # A class of the user's may check its values, and raise anything.
    def refuse(row: int, error: Exception) -> None:
        found[row] = str(error) or type(error).__name__

    if len(column):
        work_by_halves(len(column), work, refuse)
    return found


def _is_readable(column: pa.Array, hint: Any, *, may_be_null: bool = True) -> bool:
    """Return whether all values of a column certainly fit a type. False means that some may not."""
    hint, is_optional = without_none(hint)
    if column.null_count:
        if not (may_be_null or is_optional):
            return False
        column = column.drop_null()
    kind = column.type
    args = typing.get_args(hint)
    if pa.types.is_list(kind):
        return _is_readable(column.flatten(), args[0] if args else Any, may_be_null=not args)
    if pa.types.is_map(kind):
        inner = args or (Any, Any)
        keys = _is_readable(column.keys, inner[0])
        return keys and _is_readable(column.items, inner[1], may_be_null=not args)
    if pa.types.is_struct(kind):
        hints = _hints_of(hint) if _is_record(hint) else {}
        if hasattr(hint, "__post_init__"):
            return False
        return all(
            _is_readable(column.field(place), hints.get(field.name, Any), may_be_null=field.name not in hints)
            for place, field in enumerate(kind)
        )
    return _is_member(column, hint) and beyond_years(column) is None


def mixes_times(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a number would become a time, or a time a number, also within nested types.

    A number has no unit and no origin; Arrow takes it for microseconds or days since 1970.
    """
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        kinds = {fold_name(one.name): one.type for one in there}
        return any(mixes_times(kinds.get(fold_name(one.name), one.type), one.type) for one in wanted)
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return mixes_times(there.item_type, wanted.item_type)
    if _is_list(there) and pa.types.is_list(wanted):
        return mixes_times(there.value_type, wanted.value_type)
    return (_is_number(there) and _is_time(wanted)) or (_is_time(there) and _is_number(wanted))


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_member(column: pa.Array, hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members = {member.value for member in hint}
    elif typing.get_origin(hint) is typing.Literal:
        members = set(typing.get_args(hint))
    else:
        return True
    return members.issuperset(pc.unique(column).to_pylist())
