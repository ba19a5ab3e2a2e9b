"""Types of values: one that cannot be kept is refused with those that can."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import SchemaError
from penstock.state.state_spec import value_spec


@pytest.mark.parametrize(("value_type", "shown"), [(set, "set"), (object, "object"), (5, "5")])
def test_a_type_that_cannot_be_kept_is_told(value_type: object, shown: str) -> None:
    """Whoever has written it has not thought of schemas."""
    with pytest.raises(
        SchemaError, match=rf"^{shown} is not a type of values that can be kept .*Give int, float"
    ):
        value_spec("seen", value_type)
    assert ps.ValueState(int)
