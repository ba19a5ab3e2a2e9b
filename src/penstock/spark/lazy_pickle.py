"""Lazy pickles: values pickled once in the driver, and opened only where they are used.

Spark also sends data sources and stateful processors to helper processes of the driver, which do not have the job's own
modules. Those processes pass a sealed value on without opening it. The bytes never leave Spark's own processes.
"""

from __future__ import annotations

import functools
import gc
import io
import pickle
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from pyspark import cloudpickle

__all__ = ["Sealed"]

T = TypeVar("T")

_MSGSPEC_CACHE: Final = "__msgspec_cache__"


class _Pickler(cloudpickle.Pickler):
    """A pickler that drops msgspec's cache from dataclasses sent by value: it cannot be pickled, and is rebuilt."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and _MSGSPEC_CACHE in vars(obj):
            delattr(obj, _MSGSPEC_CACHE)
        if (
            obj is not msgspec.Struct
            and isinstance(obj, type(msgspec.Struct))
            and obj.__module__ == "__main__"
        ):
            raise pickle.PicklingError(
                f"{obj.__name__} is a msgspec Struct of the program that is run, which Python cannot send. Make it a "
                "dataclass, or move it into a module that the program imports"
            )
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]  # cloudpickle does not annotate it


class Sealed(Generic[T]):
    """A value in pickled form."""

    def __init__(self, value: T) -> None:
        target = io.BytesIO()
        _Pickler(target).dump(value)  # type: ignore[no-untyped-call]  # cloudpickle does not annotate it
        self._bytes: Final[bytes] = target.getvalue()

    def open(self) -> T:
        """Return the value; the same object each time within a worker."""
        return cast("T", _open(self._bytes))


@functools.lru_cache(maxsize=64)
def _open(data: bytes) -> object:
    value = pickle.loads(data)
    # PySpark's workers run a full garbage collection after every task. With all the modules imported by now it would
    # take 50 ms each time, most of the cost of a small micro-batch. It skips frozen objects.
    gc.collect()
    gc.freeze()
    return value
