"""Scalar states: a value per key of exactly the type of a field."""

from __future__ import annotations

from penstock.records.types import Field
from penstock.state.state_spec import StateSpec
from penstock.state.values import ValueState

__all__ = ["ScalarState"]


class ScalarState(ValueState[object]):
    """A value state with the stored type of a field, such as a 32-bit integer or a decimal of few digits."""

    def __init__(self, field: Field) -> None:
        super().__init__(field.python_type)
        self._field = field

    def spec(self) -> StateSpec:
        """Return how the state is stored: as the field is."""
        return StateSpec(
            self._checked_name(), self._field.python_type, self._field.arrow_type, None, self.ttl
        )
