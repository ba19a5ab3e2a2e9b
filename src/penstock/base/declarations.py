"""Declarations: descriptors that user code declares in the body of a class, such as states."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["find_declarations"]

T = TypeVar("T")


def find_declarations(owner: type, kind: type[T]) -> dict[str, T]:
    """Return the attributes of one kind in the body of a class, by name, those of its base classes first."""
    found: dict[str, T] = {}
    for cls in reversed(owner.__mro__):
        found.update({name: value for name, value in vars(cls).items() if isinstance(value, kind)})
    return found
