"""CloudEvents: attributes and data become the fields of a record, and the other way round."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import SchemaError
from penstock.records.cloud_events import CloudEventsFormat
from penstock.records.schemas import record_type
from penstock.records.wire_formats import Decoded, JsonFormat


@dataclasses.dataclass
class Reading:
    event: str
    sensor: int
    at: dt.datetime | None = None
    celsius: float = 20.0
    room: str = "hall"


ATTRIBUTES = (("event", "id"), ("at", "time"), ("room", "place"))
TEMPLATES = ("reading-{sensor}", "/plant/{room}", "reading")
AT = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
CORE = {"specversion": "1.0", "id": "7", "source": "/x", "type": "reading"}


def decoded(*values: Any, attributes: Any = ATTRIBUTES, schema: Any = Reading) -> Decoded:
    raw = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values]
    return CloudEventsFormat(record_type(schema), attributes).decode(pa.array(raw, pa.binary()))


def test_attributes_and_data_are_the_fields_of_a_record() -> None:
    """What a record does not take is left out; what an event does not have is a default."""
    found = decoded(
        {
            **CORE,
            "time": "2026-05-01T12:00:00Z",
            "place": "attic",
            "other": 7,
            "data": {"sensor": 1, "more": 2},
        },
        {**CORE, "datacontenttype": "application/json", "data": {"sensor": 2, "celsius": 5}},
    )
    assert found.bad == []
    assert found.batch.to_pylist() == [
        {"event": "7", "sensor": 1, "at": AT, "celsius": 20.0, "room": "attic"},
        {"event": "7", "sensor": 2, "at": None, "celsius": 5.0, "room": "hall"},
    ]


def test_all_fields_may_be_attributes_or_data() -> None:
    whole = decoded(
        {**CORE, "n": 3}, schema="id STRING NOT NULL, n INT", attributes=(("id", "id"), ("n", "n"))
    )
    assert whole.batch.to_pylist() == [{"id": "7", "n": 3}]
    none = decoded({**CORE, "data": {"n": 3}}, schema="n INT", attributes=())
    assert none.batch.to_pylist() == [{"n": 3}]


def test_what_is_no_event_is_bad_with_its_path() -> None:
    good = {**CORE, "data": {"sensor": 1}}
    found = decoded(
        good,
        None,
        b"{",
        {"sensor": 1},
        {**good, "specversion": "0.3"},
        {**good, "id": ""},
        {**good, "source": 7},
        {**good, "time": "noon"},
        {**CORE, "data_base64": "e30="},
        {**good, "data": {"sensor": "x"}},
        {**good, "data": {}},
        {**good, "type": None},
        good,
    )
    assert found.rows is not None
    assert found.rows.tolist() == [0, 12]
    reasons = dict(found.bad)
    assert sorted(reasons) == list(range(1, 12))
    for row, path in ((4, "specversion"), (5, "id"), (6, "source"), (7, "time"), (9, "data.sensor")):
        assert f"`$.{path}`" in reasons[row]
    assert "`data`" in reasons[8]


def test_what_is_encoded_is_an_event_and_decodes_to_the_same() -> None:
    """The id is made of the record, so a replay gives the same bytes; null attributes are left out."""
    kind = record_type(Reading)
    attributes = (("at", "time"), ("room", "place"), ("event", "name"))
    sink = pickle.loads(pickle.dumps(CloudEventsFormat(kind, attributes, TEMPLATES)))
    batch = kind.batch([Reading("e", 1, AT), Reading("f", 2, None, 1.5, "at\u00adtic")])
    raw = sink.encode(batch)
    assert json.loads(raw[0].as_py()) == {
        "specversion": "1.0",
        "id": "reading-1",
        "source": "/plant/hall",
        "type": "reading",
        "time": "2026-05-01T12:00:00Z",
        "place": "hall",
        "name": "e",
        "datacontenttype": "application/json",
        "data": {"sensor": 1, "celsius": 20.0},
    }
    assert "time" not in json.loads(raw[1].as_py())
    assert CloudEventsFormat(kind, attributes).decode(raw).batch.equals(batch)


@pytest.mark.parametrize(
    ("attributes", "templates", "why"),
    [
        ((("no", "no"),), TEMPLATES, "has no field 'no'"),
        ((("celsius", "celsius"),), TEMPLATES, "cannot be an attribute"),
        ((), ("{no}", "x", "y"), "has no field 'no'"),
        ((), ("{at}", "x", "y"), "must be a field of text or an integer"),
        ((), ("{room}", "x", "y"), "may be empty"),
    ],
)
def test_what_cannot_be_an_event_is_refused(attributes: Any, templates: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        CloudEventsFormat(record_type(Reading), attributes, templates)


SCALAR = (
    st.none()
    | st.integers(-9, 9)
    | st.floats(-9, 9)
    | st.sampled_from(["", "a", "1.0", "2026-05-01T12:00:00Z"])
)
DATA = st.dictionaries(st.sampled_from(["sensor", "celsius", "room"]), SCALAR, max_size=3)
EVENTS = st.builds(
    lambda core, more: {**core, **more},
    st.just(CORE) | st.just({**CORE, "data": {"sensor": 1}}),
    st.dictionaries(st.sampled_from([*CORE, "time", "place", "x"]), SCALAR, max_size=2)
    | st.fixed_dictionaries({"data": DATA | SCALAR}),
)


@examples(100)
@given(st.lists(EVENTS, max_size=6))
def test_events_are_what_the_record_would_be_as_plain_json(events: list[dict[str, Any]]) -> None:
    """A plain model: the required attributes are texts, and the rest is as with format=json."""
    kind = record_type(Reading)
    expected = []
    for row, event in enumerate(events):
        is_event = event["specversion"] == "1.0" and all(
            isinstance(event[name], str) and event[name] for name in ("id", "source", "type")
        )
        data = event.get("data")
        if not is_event or not isinstance(data, dict):
            continue
        flat = {name: data[name] for name in ("sensor", "celsius") if name in data}
        flat |= {name: event[attribute] for name, attribute in ATTRIBUTES if attribute in event}
        plain = JsonFormat(kind, allow_nan=False).decode(pa.array([json.dumps(flat).encode()], pa.binary()))
        expected += [(row, one) for one in plain.batch.to_pylist()]
    found = decoded(*events)
    rows = range(len(events)) if found.rows is None else found.rows.tolist()
    assert list(zip(rows, found.batch.to_pylist(), strict=True)) == expected
    assert sorted([*rows, *(row for row, _ in found.bad)]) == list(range(len(events)))
