"""Lazy pickles: values pickled once in the driver, opened only where they are used.

Spark sends data sources and stateful processors also to helper processes of the driver, which do not get the job's own
modules. What those processes only pass on stays sealed there. The bytes never leave Spark's own processes.
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
    """Takes what msgspec keeps in a dataclass off it, where the class travels by value: it cannot, and is made anew."""

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
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


class Sealed(Generic[T]):
    """A value in pickled form."""

    def __init__(self, value: T) -> None:
        target = io.BytesIO()
        _Pickler(target).dump(value)  # type: ignore[no-untyped-call]
        self._bytes: Final[bytes] = target.getvalue()

    def open(self) -> T:
        """The value; the same object each time within a worker."""
        return cast("T", _opened(self._bytes))


@functools.lru_cache(maxsize=64)
def _opened(data: bytes) -> object:
    value = pickle.loads(data)
    # PySpark's workers run a full garbage collection after every task. With all that is imported by now it would take
    # 50 ms each time, most of what a small micro-batch costs; frozen objects are not looked at.
    gc.collect()
    gc.freeze()
    return value
