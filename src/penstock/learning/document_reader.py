"""Model documents, read: a model of a library from plain JSON, without running code from it."""

from __future__ import annotations

import copy
import functools
import importlib
import random
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from penstock.learning.document_form import (
    CODE,
    DERIVED,
    FACTORIES,
    FIXED,
    MAPS,
    MISSING,
    NUMPY_KINDS,
    SEQUENCES,
    TAG,
    ClosedModelError,
    attributes_of,
    import_named,
    is_open,
)

__all__ = ["read_model"]

_MAPS_BY_TAG: Final = {tag: kind for kind, tag in MAPS.items()}
_SEQUENCES_BY_TAG: Final = {tag: kind for kind, tag in SEQUENCES.items()}
_FACTORIES_BY_NAME: Final = {name: kind for kind, name in FACTORIES.items()}


def read_model(document: Any, fresh: Any, package: str) -> Any:
    """Return the model of a document; parts that it leaves out are those of the fresh model.

    No code of a document runs: objects of classes from `package` get their attributes without a constructor, and of
    functions it may name those in the body of such a class. Raises
    ClosedModelError for a document that `write_model` cannot have written.
    """
    try:
        return _Reader(package).read(document, fresh)
    except (AttributeError, ImportError, LookupError, TypeError, OverflowError, RecursionError) as e:
        raise ClosedModelError(f"the document of a model is damaged: {type(e).__name__}: {e}") from e


class _Reader:
    def __init__(self, package: str) -> None:
        self._package = package
        self._derived = DERIVED.get(package, {})
        self._made: list[Any] = []

    def read(self, found: Any, fresh: Any) -> Any:
        if type(found) is list:
            made: list[Any] = []
            self._made.append(made)
            return self._fill_list(made, found, fresh)
        if type(found) is not dict:
            return found
        tag = found.get(TAG, "dict")
        if tag == "float":
            return float(found["#value"])
        if tag == "same":
            return self._made[found["#as"]]
        if tag in _MAPS_BY_TAG or tag == "VectorDict":
            return self._map(tag, found, fresh)
        if tag in _SEQUENCES_BY_TAG:
            return self._sequence(tag, found, fresh)
        if tag in _CODES:
            return getattr(self, _CODES[tag])(found, fresh)
        if tag in _OTHERS:
            place = len(self._made)
            self._made.append(None)
            self._made[place] = getattr(self, _OTHERS[tag])(found, fresh)
            return self._made[place]
        if ":" in tag:
            return self._object(tag, found, fresh)
        kind = np.dtype(tag)
        if kind.kind not in NUMPY_KINDS:
            raise ClosedModelError(f"the document of a model has a number of the type {tag!r}")
        return kind.type(found["#value"])

    def _fill_list(self, made: Any, found: Any, fresh: Any) -> Any:
        known = list(fresh) if isinstance(fresh, list | tuple | deque) else []
        for at, item in enumerate(found):
            made.append(self.read(item, known[at] if at < len(known) else MISSING))
        return made

    def _pairs(self, found: dict[str, Any], fresh: Any) -> Iterator[tuple[Any, Any]]:
        known = fresh if isinstance(fresh, dict) else {}
        if "#pairs" in found:
            for key, value in found["#pairs"]:
                made = self.read(key, MISSING)
                yield made, self.read(value, known.get(made, MISSING))
        else:
            for key, value in found.items():
                if not key.startswith(TAG):
                    yield key, self.read(value, known.get(key, MISSING))

    def _map(self, tag: str, found: dict[str, Any], fresh: Any) -> Any:
        if tag == "VectorDict":
            place = len(self._made)
            self._made.append(None)
            factory, mask = self.read(found["#of"], MISSING), self.read(found["#mask"], MISSING)
            vector: Any = importlib.import_module("river.utils").VectorDict
            self._made[place] = vector(dict(self._pairs(found, fresh)), factory, mask)
            return self._made[place]
        made: Any = _MAPS_BY_TAG[tag]()
        self._made.append(made)
        if tag == "defaultdict":
            made.default_factory = self.read(found["#of"], getattr(fresh, "default_factory", MISSING))
        for key, value in self._pairs(found, fresh):
            made[key] = value
        return made

    def _sequence(self, tag: str, found: dict[str, Any], fresh: Any) -> Any:
        if tag == "deque":
            made: Any = deque(maxlen=found["#most"])
            self._made.append(made)
            return self._fill_list(made, found["#items"], fresh)
        place = len(self._made)
        self._made.append(None)
        self._made[place] = _SEQUENCES_BY_TAG[tag](self._fill_list([], found["#items"], fresh))
        return self._made[place]

    def _array(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        kind = np.dtype(found["#type"])
        if kind.kind not in NUMPY_KINDS:
            raise ClosedModelError(f"the document of a model has an array of the type {kind.str!r}")
        values = [float(item["#value"]) if type(item) is dict else item for item in found["#values"]]
        return np.array(values, kind).reshape(found["#shape"]).copy(order=found["#order"])

    def _random(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        made = random.Random(0)  # noqa: S311  # as the library has it
        if found["#state"] is None:
            return made
        version, numbers, gauss = found["#state"]
        made.setstate((version, tuple(numbers), gauss))
        return made

    def _random_state(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        made = np.random.RandomState()
        made.set_state(self.read(found["#state"], MISSING))
        return made

    def _generator(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        state = self.read(found["#state"], MISSING)
        bits = {"PCG64": np.random.PCG64, "MT19937": np.random.MT19937}[state["bit_generator"]]()
        bits.state = state
        return np.random.Generator(bits)

    def _code(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        if not isinstance(fresh, CODE):
            raise ClosedModelError("the document of a model names code that the job's model does not have")
        return fresh

    def _class(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        return _FACTORIES_BY_NAME.get(found["#name"]) or self._class_of(found["#name"])

    def _method(self, found: dict[str, Any], fresh: Any) -> Any:
        holder, name = self.read(found["#of"], getattr(fresh, "__self__", MISSING)), found["#name"]
        kind: Any = type(holder)
        is_known = isinstance(holder, random.Random) or is_open(kind, self._package)
        if not is_known or not isinstance(getattr(kind, name, None), types.FunctionType):
            raise ClosedModelError(f"a {kind.__name__} has no method {name!r}")
        return getattr(holder, name)

    def _function(self, found: dict[str, Any], fresh: Any) -> Any:  # noqa: ARG002  # as its neighbours
        made = import_named(found["#name"], self._package)
        if not isinstance(made, types.FunctionType) or "." not in made.__qualname__:
            raise ClosedModelError(
                f"the document of a model has {found['#name']}, which is not a function of a class"
            )
        return made

    def _partial(self, found: dict[str, Any], fresh: Any) -> Any:
        function = self.read(found["#of"], getattr(fresh, "func", MISSING))
        arguments = self.read(found["#arguments"], MISSING)
        return functools.partial(function, *arguments, **self.read(found["#named"], MISSING))

    def _object(self, tag: str, found: dict[str, Any], fresh: Any) -> Any:
        kind = self._class_of(tag)
        is_alike = type(fresh) is kind
        place = len(self._made)
        self._made.append(None)
        if issubclass(kind, tuple):
            made: Any = tuple.__new__(kind, self._fill_list([], found["#items"], fresh))
        elif issubclass(kind, dict | list):
            made = kind.__new__(kind)  # type: ignore[type-var]  # a class of both does not exist
        else:
            made = object.__new__(kind)
        self._made[place] = made
        if issubclass(kind, dict):
            for key, value in found["#pairs"]:
                dict.__setitem__(made, self.read(key, MISSING), self.read(value, MISSING))
        elif issubclass(kind, list):
            self._fill_list(made, found["#items"], fresh)
        for name, held in attributes_of(fresh) if is_alike else ():
            if name not in found:
                # Mutable parts must not be those of the fresh model, with which other models begin.
                is_fixed = isinstance(held, FIXED)
                object.__setattr__(made, name, held if is_fixed else copy.deepcopy(held))
        for name in found.get("#derived", ()):
            object.__setattr__(made, name, self._derived[name])
        for name, held in found.items():
            if not name.startswith(TAG):
                before = getattr(fresh, name, MISSING) if is_alike else MISSING
                object.__setattr__(made, name, self.read(held, before))
        return made

    def _class_of(self, name: str) -> type:
        kind = import_named(name, self._package)
        if not isinstance(kind, type) or not is_open(kind, self._package):
            raise ClosedModelError(
                f"the document of a model has a {name}, which is not a class of {self._package}"
            )
        return kind


_OTHERS: Final = {
    "array": "_array",
    "Random": "_random",
    "RandomState": "_random_state",
    "Generator": "_generator",
}
_CODES: Final = {
    "code": "_code",
    "class": "_class",
    "method": "_method",
    "function": "_function",
    "partial": "_partial",
}
