"""Plain values: the values to which a command sets value states, decoded from its payload in one pass."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.state.state_spec import StateSpec, fill_defaults, fit_value, value_spec
from penstock.state.values import KeyedState, ValueState

__all__ = ["PlainValues"]


class PlainValues:
    """The value states of a step that have neither history nor TTL, with a decoder for commands that set them.

    Thousands of commands per second set such states, mostly for single keys. One decoder for all names reads their
    payloads; other payloads are read name by name.
    """

    def __init__(self, states: Mapping[str, KeyedState]) -> None:
        plain = {
            name: state for name, state in states.items() if type(state) is ValueState and state.ttl is None
        }
        self._specs: Final = {name: value_spec(name, state.value_type) for name, state in plain.items()}
        # The decoded value is stored as it is, except for types that may leave fields to their class's defaults.
        self._fields: Final = [
            (f"value_{number}", name, None if _is_simple(spec.python_type) else spec)
            for number, (name, spec) in enumerate(self._specs.items())
        ]

    def read(self, payload: bytes | msgspec.Raw) -> dict[str, Any] | None:
        """Return values by state name; None if a payload names no state or other states, or if a value does not fit."""
        values = {}
        try:
            found = self._decoder.decode(payload)
            for field, name, spec in self._fields:
                value = getattr(found, field)
                if value is not msgspec.UNSET:
                    values[name] = value if spec is None or value is None else _fit(value, spec)
        except Exception:  # the class of a value is user code and may raise anything
            return None
        return values or None

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        # State names are arbitrary, so the fields have generated names.
        fields = [
            (field, self._specs[name].python_type | None | msgspec.UnsetType, msgspec.UNSET)
            for field, name, _ in self._fields
        ]
        names = {field: name for field, name, _ in self._fields}
        kind = msgspec.defstruct("Values", fields, rename=names, forbid_unknown_fields=True)
        return msgspec.json.Decoder(kind)


def _is_simple(kind: Any) -> bool:
    return kind in (bool, int, float, str) or (isinstance(kind, type) and issubclass(kind, enum.Enum))


def _fit(value: Any, spec: StateSpec) -> Any:
    """Return a value as a value state would store it."""
    value = fill_defaults(value)
    return value if type(value) is spec.python_type else fit_value(value, spec)
