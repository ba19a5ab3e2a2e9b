"""Transient fields: values that a function keeps in a worker's memory and never stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, overload

from penstock.errors import StateError

__all__ = ["Kept", "TransientField"]

T = TypeVar("T")
_KEPT: Final = "__penstock_kept__"


class TransientField(Generic[T]):
    """A field of a process function that is not restored after a failure, and whose value may be lost at any time.

    Use it for caches and clients only. Declare it in the body of a process function. The factory creates the value on
    first use in a worker; the worker then keeps it, also between micro-batches. Each worker has its own value, and a
    new worker creates a new one. The value is never stored and never sent with the job. Changes by a record that raises
    are not undone.

    >>> class Enrich(ProcessFunction):
    ...     names: TransientField[dict[int, str]] = TransientField(dict)
    ...     def process_record(self, record, ctx):
    ...         if record.id not in self.names:
    ...             self.names[record.id] = look_up(record.id)

    The command `clear-cache` drops the value, after it calls `ProcessFunction.clear_cache`.

    Args:
        factory: a function without arguments, or a class, which creates the value.

    """

    def __init__(self, factory: Callable[[], T]) -> None:
        self.factory = factory
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, function: None, owner: type) -> TransientField[T]: ...
    @overload
    def __get__(self, function: object, owner: type) -> T: ...
    def __get__(self, function: object | None, owner: type) -> TransientField[T] | T:
        if function is None:
            return self
        values = Kept.of(function).values
        try:
            found: T = values[self.name]
        except KeyError:
            found = values[self.name] = self.factory()
        return found

    def __set__(self, function: object, value: T) -> None:
        raise StateError(
            f"{self.name!r} is a transient field, whose value its factory creates; change that value, or declare "
            "another field."
        )


class Kept:
    """The data that a worker keeps with a function: the values of transient fields, and each step's last clear-cache.

    All copies of a function within a worker share it. It is not pickled with the function.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.generations: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    @classmethod
    def of(cls, function: object) -> Kept:
        """Return the data kept with a function; it is created on the first call."""
        fields = vars(function)
        found = fields.get(_KEPT)
        if found is None:
            found = fields[_KEPT] = cls()
        assert isinstance(found, Kept)
        return found
