"""Key templates: the keys of records."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import BindingError
from penstock.records.schemas import record_type
from penstock.stores.key_templates import KeyTemplate

READING = record_type("sensor BIGINT, room STRING, celsius DOUBLE")


def keys(template: str) -> list[str | None]:
    records = [
        {"sensor": 7, "room": "é b", "celsius": 1.0},
        {"sensor": -1, "room": "", "celsius": 1.0},
        {"sensor": None, "room": "c", "celsius": None},
    ]
    batch = pa.RecordBatch.from_pylist(records, READING.schema)
    found: list[str | None] = KeyTemplate("latest", template, READING).keys(batch).to_pylist()
    return found


def test_fields_stand_where_their_names_were() -> None:
    """A key with a null is no key."""
    assert keys("{room}/{sensor}:now") == ["é b/7:now", "/-1:now", None]
    assert keys("{sensor}") == ["7", "-1", None]
    assert keys("room:{room}") == ["room:é b", "room:", "room:c"]


def test_a_template_without_fields_is_one_key() -> None:
    """Which has the newest record."""
    assert keys("newest") == ["newest", "newest", "newest"]


@pytest.mark.parametrize("name", ["celsius", "other"])
def test_a_field_that_makes_no_key_is_refused(name: str) -> None:
    """With the fields that there are."""
    with pytest.raises(
        BindingError, match=r"must be a field of text or an integer\. The records have sensor, room"
    ):
        KeyTemplate("latest", f"a:{{{name}}}", READING)
