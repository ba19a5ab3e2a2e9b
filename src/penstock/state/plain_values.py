"""Plain values: what a command sets value states to, read from its payload in one go."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.state.state_spec import StateSpec, completed, fitted, value_spec
from penstock.state.values import KeyedState, ValueState

__all__ = ["PlainValues"]


class PlainValues:
    """The value states of a step that have neither history nor expiry, and what sets several of them.

    Thousands of commands a second set such states, of single keys mostly. Their payloads are read with one decoder for
    all names, where others are read name by name.
    """

    def __init__(self, states: Mapping[str, KeyedState]) -> None:
        plain = {
            name: state for name, state in states.items() if type(state) is ValueState and state.ttl is None
        }
        self._specs: Final = {name: value_spec(name, state.value_type) for name, state in plain.items()}
        # What is decoded is what is kept, but for types that may leave something to their class.
        self._fields: Final = [
            (f"value_{number}", name, None if _is_simple(spec.python_type) else spec)
            for number, (name, spec) in enumerate(self._specs.items())
        ]

    def read(self, payload: bytes | msgspec.Raw) -> dict[str, Any] | None:
        """The values by the names of their states; None when it names others or none, or when one does not fit."""
        values = {}
        try:
            found = self._decoder.decode(payload)
            for field, name, spec in self._fields:
                value = getattr(found, field)
                if value is not msgspec.UNSET:
                    values[name] = value if spec is None or value is None else _fitted(value, spec)
        except Exception:  # the class of a value is the user's and may raise anything
            return None
        return values or None

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        # The names of the states may be any; those of the fields are penstock's own.
        fields = [
            (field, self._specs[name].python_type | None | msgspec.UnsetType, msgspec.UNSET)
            for field, name, _ in self._fields
        ]
        names = {field: name for field, name, _ in self._fields}
        kind = msgspec.defstruct("Values", fields, rename=names, forbid_unknown_fields=True)
        return msgspec.json.Decoder(kind)


def _is_simple(kind: Any) -> bool:
    return kind in (bool, int, float, str) or (isinstance(kind, type) and issubclass(kind, enum.Enum))


def _fitted(value: Any, spec: StateSpec) -> Any:
    """A value as a value state would keep it."""
    value = completed(value)
    return value if type(value) is spec.python_type else fitted(value, spec)
