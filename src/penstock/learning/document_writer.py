"""Model documents, written: the attributes of a model of a library as plain JSON, without pickle."""

from __future__ import annotations

import functools
import inspect
import math
import random
import types
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from penstock.learning.document_form import (
    CALLABLE,
    DERIVED,
    FACTORIES,
    FIXED,
    MAPS,
    MISSING,
    NUMPY_KINDS,
    SCALARS,
    SEQUENCES,
    TAG,
    ClosedModelError,
    attributes_of,
    import_named,
    is_open,
)

__all__ = ["write_model"]

_MOST_BITS: Final = 4096


def write_model(model: Any, fresh: Any, package: str) -> Any:
    """Return a model as JSON: its attributes by name, objects with the name of their class.

    Code is left out: functions, and constructor arguments that equal those of the `fresh` model that the job declares.
    All classes are from `package`. Raises ClosedModelError, which names an attribute that is not plain data.
    """
    return _Writer(package).write(model, fresh, "")


class _Writer:
    def __init__(self, package: str) -> None:
        self._package = package
        self._derived = DERIVED.get(package, {})
        self._memory: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        # The address of an object is unique only while it lives.
        self._alive: list[Any] = []

    def write(self, value: Any, fresh: Any, place: str) -> Any:
        kind = type(value)
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "#value": repr(value)}
        if kind in SCALARS:
            if kind is int and value.bit_length() > _MOST_BITS:
                raise ClosedModelError(f"{place.lstrip('.')} is a number of {value.bit_length():,} bits")
            return value
        if isinstance(value, np.generic):
            return self._numpy_scalar(value, place)
        if isinstance(value, CALLABLE):
            return self._code(value, fresh, place)
        number = self._numbers.setdefault(id(value), len(self._numbers))
        if number < len(self._alive):
            return {TAG: "same", "#as": number}
        self._alive.append(value)
        if kind is list:
            return self._items(value, fresh, place)
        if kind in MAPS:
            return self._map(value, fresh, place)
        if kind in SEQUENCES:
            return self._sequence(value, fresh, place)
        if isinstance(value, np.ndarray):
            return self._array(value, place)
        if isinstance(value, random.Random | np.random.RandomState | np.random.Generator):
            return self._generator(value, place)
        if _is_vector(kind):
            data, factory, mask, _ = value.__reduce__()[1]
            return {
                TAG: "VectorDict",
                "#of": self.write(factory, MISSING, f"{place}.default_factory"),
                "#mask": self.write(mask, MISSING, f"{place}.mask"),
            } | self._pairs(data, fresh, place)
        return self._object(value, fresh, place)

    def _numpy_scalar(self, value: Any, place: str) -> Any:
        if value.dtype.kind not in NUMPY_KINDS:
            raise _closed(value, place)
        item = value.item()
        is_finite = not isinstance(item, float) or math.isfinite(item)
        # The name of a type of texts has their length.
        name = "str_" if value.dtype.kind == "U" else value.dtype.name
        return {TAG: name, "#value": item if is_finite else repr(item)}

    def _items(self, values: Iterable[Any], fresh: Any, place: str) -> list[Any]:
        fresh = list(fresh) if isinstance(fresh, list | tuple | deque) else []
        return [
            self.write(value, fresh[at] if at < len(fresh) else MISSING, f"{place}[{at}]")
            for at, value in enumerate(values)
        ]

    def _pairs(self, pairs: Any, fresh: Any, place: str) -> dict[str, Any]:
        known = fresh if isinstance(fresh, dict) else {}
        if all(type(key) is str and not key.startswith(TAG) for key in pairs):
            return {
                key: self.write(value, known.get(key, MISSING), f"{place}.{key}")
                for key, value in pairs.items()
            }
        items = [
            [
                self.write(key, MISSING, place),
                self.write(value, known.get(key, MISSING), f"{place}[{key!r}]"),
            ]
            for key, value in pairs.items()
        ]
        return {"#pairs": items}

    def _map(self, value: Any, fresh: Any, place: str) -> Any:
        found: dict[str, Any] = {}
        if type(value) is defaultdict:
            factory = getattr(fresh, "default_factory", MISSING)
            found["#of"] = self.write(value.default_factory, factory, f"{place}.default_factory")
        found |= self._pairs(value, fresh, place)
        return (
            found
            if found and type(value) is dict and "#pairs" not in found
            else {TAG: MAPS[type(value)], **found}
        )

    def _sequence(self, value: Any, fresh: Any, place: str) -> Any:
        kind = type(value)
        if kind in (set, frozenset):
            items = sorted(value) if all(type(item) in (bool, int) for item in value) else []
            if list(value) != list(kind(items)):
                # The model may depend on the order of the set, which differs between processes for texts.
                raise ClosedModelError(f"{place.lstrip('.')} is a set, whose order differs between processes")
            return {TAG: SEQUENCES[kind], "#items": items}
        found = {TAG: SEQUENCES[kind], "#items": self._items(value, fresh, place)}
        return found | {"#most": value.maxlen} if kind is deque else found

    def _array(self, value: Any, place: str) -> Any:
        if value.dtype.kind not in NUMPY_KINDS or type(value) is not np.ndarray:
            raise _closed(value, place)
        memory = value if value.base is None else value.base
        if self._memory.setdefault(id(memory), value) is not value:
            raise ClosedModelError(f"{place.lstrip('.')} shares its memory with another array")
        is_by_column = value.flags.f_contiguous and not value.flags.c_contiguous
        return {
            TAG: "array",
            "#type": value.dtype.str,
            "#shape": list(value.shape),
            "#order": "F" if is_by_column else "C",
            "#values": [
                item
                if type(item) is not float or math.isfinite(item)
                else {TAG: "float", "#value": repr(item)}
                for item in value.ravel().tolist()
            ],
        }

    def _generator(self, value: Any, place: str) -> Any:
        if isinstance(value, random.Random):
            version, numbers, gauss = value.getstate()
            return {TAG: "Random", "#state": [version, list(numbers), gauss]}
        state = (
            value.get_state(legacy=False)
            if isinstance(value, np.random.RandomState)
            else value.bit_generator.state
        )
        tag = "RandomState" if isinstance(value, np.random.RandomState) else "Generator"
        return {TAG: tag, "#state": self.write(dict(state), MISSING, place)}

    def _code(self, value: Any, fresh: Any, place: str) -> Any:
        if isinstance(value, types.MethodType):
            return {
                TAG: "method",
                "#of": self.write(value.__self__, getattr(fresh, "__self__", MISSING), place),
                "#name": value.__name__,
            }
        if isinstance(value, functools.partial):
            return {
                TAG: "partial",
                "#of": self.write(value.func, getattr(fresh, "func", MISSING), place),
                "#arguments": self.write(list(value.args), MISSING, place),
                "#named": self.write(dict(value.keywords), MISSING, place),
            }
        if isinstance(value, type):
            return {TAG: "class", "#name": FACTORIES.get(value) or self._class_name(value, place)}
        closure = getattr(value, "__closure__", None) or ()
        if value is fresh and all(isinstance(cell.cell_contents, FIXED) for cell in closure):
            return {TAG: "code"}
        name = f"{value.__module__}:{value.__qualname__}"
        try:
            known = import_named(name, self._package)
        except ClosedModelError:
            known = None
        if known is value and "." in value.__qualname__:
            return {TAG: "function", "#name": name}
        raise _closed(value, place)

    def _object(self, value: Any, fresh: Any, place: str) -> Any:
        kind: Any = type(value)
        found: dict[str, Any] = {TAG: self._class_name(kind, place)}
        derived = sorted(name for name, _ in attributes_of(value) if name in self._derived)
        if derived:
            found["#derived"] = derived
        if isinstance(value, dict):
            found |= {
                "#pairs": [
                    [self.write(k, MISSING, place), self.write(v, MISSING, place)] for k, v in value.items()
                ]
            }
        elif isinstance(value, list | tuple):
            found |= {"#items": self._items(value, fresh, place)}
        is_alike = type(fresh) is kind
        arguments = _arguments_of(kind) if is_alike else frozenset()
        for name, held in attributes_of(value):
            if name in self._derived:
                continue
            if isinstance(held, random.Random) and getattr(value, "seed", 0) is None:
                # Without a seed no drawn number matters, or the job would not take the model.
                found[name] = {TAG: "Random", "#state": None}
                continue
            before = getattr(fresh, name, MISSING) if is_alike else MISSING
            if name in arguments and isinstance(held, FIXED) and _is_same(held, before):
                continue
            found[name] = self.write(held, before, f"{place}.{name}")
        return found

    def _class_name(self, kind: type, place: str) -> str:
        name = f"{kind.__module__}:{kind.__qualname__}"
        if not is_open(kind, self._package):
            raise ClosedModelError(
                f"{place.lstrip('.') or 'the model'} is a {name.replace(':', '.')}, whose state only pickle could read"
            )
        return name


@functools.lru_cache(maxsize=1024)
def _arguments_of(kind: Any) -> frozenset[str]:
    """Return the names of the arguments of a class: how it was made, which is code."""
    return frozenset(inspect.signature(kind.__init__).parameters)


def _is_vector(kind: type) -> bool:
    return kind.__name__ == "VectorDict" and kind.__module__.startswith("river.")


def _is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and (value is other or value == other)


def _closed(value: Any, place: str) -> ClosedModelError:
    kind = type(value)
    what = getattr(value, "__qualname__", None)
    described = f"the function {what}" if what else f"a {kind.__module__}.{kind.__qualname__}"
    return ClosedModelError(f"{place.lstrip('.') or 'the model'} is {described}, which is not plain data")
