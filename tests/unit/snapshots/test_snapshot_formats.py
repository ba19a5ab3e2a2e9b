"""Every format gives back exactly what was written, and says where a row does not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import all_plain, batches, plain, schemas

from penstock.snapshots.formats import FORMATS, decode, encode
from penstock.snapshots.schemas import check_schema, columns_of, schema_of

EXAMPLES = 100


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_every_value_comes_back_to_the_bit(name: str, data: st.DataObject) -> None:
    """For any schema and any values, however the rows are batched; with the same bytes each time."""
    batch = data.draw(batches())
    cut = data.draw(st.integers(0, len(batch)))
    whole = encode([batch], batch.schema, name)
    assert all_plain(decode(whole, batch.schema, name)) == plain(batch)
    pieces = [batch.slice(0, cut), batch.slice(cut)]
    assert all_plain(decode(encode(pieces, batch.schema, name), batch.schema, name)) == plain(batch)
    if name != "arrow":
        assert encode(pieces, batch.schema, name) == whole
    for found in decode(whole, batch.schema, name):
        assert found.schema.equals(batch.schema)
        found.validate(full=True)


@settings(max_examples=EXAMPLES, deadline=None)
@given(schemas(depth=3))
def test_a_schema_comes_back_from_json(schema: pa.Schema) -> None:
    """With the same types, names and nullability."""
    assert schema_of(columns_of(schema)).equals(schema)
    assert check_schema(schema, "t").equals(schema)
