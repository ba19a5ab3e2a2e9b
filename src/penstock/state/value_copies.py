"""Value copies: as deep as the type requires; immutable values are not copied."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.errors import SchemaError
from penstock.records.nested_values import without_none
from penstock.records.schemas import arrow_type_of

__all__ = ["Copier", "copier_of"]

Copier = Callable[[Any], Any]


@functools.cache
def copier_of(kind: Any) -> Copier | None:
    """Return a function that copies values of a storable type, so that a change of the copy leaves the original intact.

    None if values of the type are immutable.
    """
    inner, optional = without_none(kind)
    if optional:
        of_inner = copier_of(inner)
        return None if of_inner is None else lambda value: None if value is None else of_inner(value)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple):
        return _of_sequence(origin, copier_of(args[0]))
    if origin is set:
        return set
    if origin is dict:
        return _of_dict(copier_of(args[1]))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # dataclasses have it; mypy does not know
        fields = [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
        return _of_record(_shallow_copier(kind), frozen, fields, object.__setattr__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = [(field.name, field.type) for field in msgspec.structs.fields(kind)]
        return _of_record(copy.copy, kind.__struct_config__.frozen, fields, msgspec.structs.force_setattr)
    return None if _never_changes(kind) else copy.deepcopy


def _never_changes(kind: Any) -> bool:
    """Return whether a type without parts is a scalar, whose values are immutable."""
    try:
        arrow_type_of(kind)
    except SchemaError:
        return False
    return True


def _of_sequence(kind: type[list[Any] | tuple[Any, ...]], of_item: Copier | None) -> Copier | None:
    if of_item is None:
        return list if kind is list else None
    return lambda values: kind(map(of_item, values))


def _of_dict(of_value: Copier | None) -> Copier:
    if of_value is None:
        return dict
    return lambda values: {key: of_value(value) for key, value in values.items()}


def _of_record(
    shallow: Copier, frozen: bool, fields: Iterable[tuple[str, Any]], assign: Callable[[Any, str, Any], None]
) -> Copier | None:
    deep = [(name, copier) for name, kind in fields if (copier := copier_of(kind)) is not None]
    if not deep:
        return None if frozen else shallow

    def copy_value(record: Any) -> Any:
        found = shallow(record)
        for name, copier in deep:
            assign(found, name, copier(getattr(record, name)))
        return found

    return copy_value


def _shallow_copier(kind: type) -> Copier:
    """Return a shallow copier for a dataclass, much faster than `copy.copy` if it has neither slots nor `__copy__`."""
    if hasattr(kind, "__copy__") or any(vars(base).get("__slots__") for base in kind.__mro__):
        return copy.copy

    def copy_value(record: Any) -> Any:
        found: Any = object.__new__(kind)
        found.__dict__.update(record.__dict__)
        return found

    return copy_value
