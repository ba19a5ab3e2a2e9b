"""The form of model documents: their tags, and which classes and functions a document may name."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

__all__ = [
    "CALLABLE",
    "CODE",
    "DERIVED",
    "FACTORIES",
    "FIXED",
    "MAPS",
    "MISSING",
    "NUMPY_KINDS",
    "SCALARS",
    "SEQUENCES",
    "TAG",
    "ClosedModelError",
    "attributes_of",
    "import_named",
    "is_open",
]

TAG: Final = "#"
MAPS: Final[dict[Any, str]] = {
    dict: "dict",
    defaultdict: "defaultdict",
    Counter: "Counter",
    OrderedDict: "OrderedDict",
}
SEQUENCES: Final[dict[Any, str]] = {tuple: "tuple", deque: "deque", set: "set", frozenset: "frozenset"}
FACTORIES: Final[dict[Any, str]] = {
    kind: f"builtins.{kind.__name__}" for kind in (bool, int, float, str, list, dict, set, tuple)
} | {kind: f"collections.{kind.__name__}" for kind in (Counter, OrderedDict, defaultdict, deque)}
CODE: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    np.ufunc,
    type,
)
CALLABLE: Final = (*CODE, types.MethodType, functools.partial)
SCALARS: Final = (type(None), bool, int, float, str)
FIXED: Final = (*SCALARS, *CODE)
_OPEN_BASES: Final = (object, dict, list, tuple, Counter, UserDict, UserList)
NUMPY_KINDS: Final = "biufU"
# Attributes that are computed from the others when needed again.
DERIVED: Final[dict[str, dict[str, Any]]] = {
    "river": {
        "_plan": None,
        "_inference_transformers": (),
        "_last_step_cached": None,
        "_last_step_params": None,
    },
    "sklearn": {"_loss_function_": None},
}
# Parts of the packages that read files or run other things.
_NO_MODELS: Final = frozenset(
    ("_testing", "checks", "compat", "conftest", "datasets", "externals", "stream", "tests")
)


class ClosedModelError(ValueError):
    """A model has something that is not plain data, so only pickle could store it."""


class _Missing:
    """Marks a place where a fresh model has nothing."""


MISSING: Final = _Missing()


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in their order."""
    kind: Any = type(value)
    for name in _slots_of(kind):
        if hasattr(value, name):
            yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> tuple[str, ...]:
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = (name for found in slots for name in ((found,) if isinstance(found, str) else found))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.lru_cache(maxsize=1024)
def is_open(kind: Any, package: str) -> bool:
    """Return whether attributes and items are all of an object, as for classes written in Python."""
    return all(
        base in _OPEN_BASES
        or base.__module__ in ("abc", "typing", "collections.abc")
        or (base.__module__.startswith(f"{package}.") and _is_source(base.__module__))
        for base in kind.__mro__
    )


def _is_source(module: str) -> bool:
    return str(getattr(sys.modules.get(module), "__file__", "")).endswith(".py")


@functools.lru_cache(maxsize=1024)
def import_named(name: str, package: str) -> Any:
    """Return a class or function of the package by its name, MODULE:QUALNAME."""
    module, _, path = name.partition(":")
    parts = module.split(".")
    if parts[0] != package or len(parts) < 2 or not _NO_MODELS.isdisjoint(parts):
        raise ClosedModelError(f"the document of a model has a {name}, which is not a model of {package}")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if (getattr(found, "__module__", ""), getattr(found, "__qualname__", "")) != (module, path):
        raise ClosedModelError(f"the document of a model has a {name}, which {module} only imports")
    return found
