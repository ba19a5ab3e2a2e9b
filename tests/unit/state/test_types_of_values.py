"""Types of values: an unsupported type is refused with a list of supported ones, and field defaults are
applied.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

import penstock as ps
from penstock.errors import SchemaError
from penstock.state.state_spec import fill_defaults, value_spec


@pytest.mark.parametrize(("value_type", "shown"), [(set, "set"), (object, "object"), (5, "5")])
def test_a_type_that_cannot_be_kept_is_told(value_type: object, shown: str) -> None:
    """The message must suit a user who does not know about schemas."""
    with pytest.raises(
        SchemaError, match=rf"^{shown} is not a type of values that can be kept .*Give int, float"
    ):
        value_spec("seen", value_type)
    assert ps.ValueState(int)


@dataclass
class Listed:
    name: str
    weight: int = 3


def test_a_value_has_its_defaults_wherever_it_goes() -> None:
    """Fields that a sender leaves out are stored and returned like others."""
    found = fill_defaults(msgspec.json.decode(b'[{"name": "x"}]', type=list[Listed]))
    assert msgspec.to_builtins(found) == [{"name": "x", "weight": 3}]
