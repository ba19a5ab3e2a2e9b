"""CloudEvents in the binary mode: attributes in headers become the same records as those in JSON, and back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SchemaError
from penstock.records.cloud_events import CloudEventsFormat, binary_attributes
from penstock.records.event_headers import event_headers_of, http_header_text
from penstock.records.schemas import record_type
from penstock.records.wire_formats import Decoded


@dataclasses.dataclass
class Reading:
    event: str
    level: int
    urgent: bool
    celsius: float
    at: dt.datetime | None = None


KIND = record_type(Reading)
ATTRIBUTES = (("event", "id"), ("level", "level"), ("urgent", "urgent"), ("at", "time"))
TEMPLATES = ("e-{event}", "/plant", "reading")
CORE = {"ce_specversion": b"1.0", "ce_id": b"7", "ce_source": b"/x", "ce_type": b"reading"}
GIVEN = {**CORE, "ce_level": b"3", "ce_urgent": b"true"}
DATA = b'{"celsius": 21.5}'


def decoded(*messages: tuple[dict[str, Any], bytes | None]) -> Decoded:
    events = event_headers_of(ATTRIBUTES, KIND)
    values = pa.array([body for _, body in messages], pa.binary())
    headers = {
        name: pa.array([given.get(name) for given, _ in messages], pa.binary()) for name in events.headers
    }
    return CloudEventsFormat(KIND, ATTRIBUTES).decode(events.structured(values, headers))


def reason(headers: dict[str, Any], body: bytes | None = DATA) -> str:
    """Why one message of two is bad."""
    found = decoded((headers, body), (GIVEN, DATA))
    assert len(found.batch) == 1
    ((row, why),) = found.bad
    assert row == 0
    return why


def test_attributes_are_read_from_headers_and_data_from_the_body() -> None:
    """Beside events in JSON, which say so by their content type, or have no headers of events."""
    structured = {"specversion": "1.0", "id": "8", "source": "/x", "type": "r", "level": 4, "urgent": False}
    body = json.dumps({**structured, "data": {"celsius": 1}}).encode()
    found = decoded(
        ({**GIVEN, "ce_time": b"2026-05-01T12:00:00Z", "ce_other": b"x"}, DATA),
        ({"content-type": b"application/cloudevents+json"}, body),
        ({**GIVEN, "content-type": b"application/CloudEvents+json; charset=UTF-8"}, body),
        ({}, body),
        ({**GIVEN, "content-type": b"application/vnd.plant+json; charset=utf-8"}, DATA),
    )
    assert found.bad == []
    at = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    first = {"event": "7", "level": 3, "urgent": True, "celsius": 21.5}
    other = {"event": "8", "level": 4, "urgent": False, "celsius": 1.0, "at": None}
    assert found.batch.to_pylist() == [{**first, "at": at}, other, other, other, {**first, "at": None}]


def test_what_is_no_event_is_told() -> None:
    """With the path to it, as in events in JSON."""
    assert "`id`" in reason({**GIVEN, "ce_id": None})
    assert "`source`" in reason({**GIVEN, "ce_source": None})
    assert "$.specversion" in reason({**GIVEN, "ce_specversion": b"0.3"})
    assert "$.id" in reason({**GIVEN, "ce_id": b""})
    assert "$.id" in reason({**GIVEN, "ce_id": b"\xff"})
    assert "$.level" in reason({**GIVEN, "ce_level": b"03"})
    assert "$.urgent" in reason({**GIVEN, "ce_urgent": b"yes"})
    assert "$.data.celsius" in reason(GIVEN, b'{"celsius": "warm"}')
    for body in (
        None,
        b"",
        b"<xml/>",
        b'{"celsius": 1}, "id": "other"',
        b'{"celsius": "\xff"}',
        b"[" * 100_000,
    ):
        assert "`data`" in reason(GIVEN, body)
    assert "`data`" in reason({**GIVEN, "content-type": b"text/plain"})


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.datetimes() | st.none())
def test_what_is_written_is_read_as_the_same_record(
    event: str, level: int, urgent: bool, at: dt.datetime | None
) -> None:
    """Whatever the texts and numbers are."""
    time = None if at is None else at.replace(tzinfo=dt.UTC)
    batch = KIND.batch([Reading(event, level, urgent, 1.5, time)])
    form = CloudEventsFormat(KIND, ATTRIBUTES[1:], TEMPLATES, is_binary=True)
    named = binary_attributes(batch, ATTRIBUTES[1:], TEMPLATES)
    headers = {f"ce_{name}": column[0].as_py() for name, column in named.items()}
    body = form.encode(batch)[0].as_py()
    assert set(json.loads(body)) == {"event", "celsius"}
    assert headers["ce_id"] == f"e-{event}".encode()
    found = decoded(({**headers, "content-type": b"application/json"}, body))
    assert found.bad == []
    assert found.batch.to_pylist() == [{**batch.to_pylist()[0], "event": f"e-{event}"}]


def test_an_event_of_attributes_alone_has_no_body() -> None:
    """So it cannot be written in the binary mode."""
    kind = record_type("event STRING")
    CloudEventsFormat(kind, (("event", "cause"),), ("a", "b", "c"))
    with pytest.raises(SchemaError, match="none is left for the body"):
        CloudEventsFormat(kind, (("event", "cause"),), ("a", "b", "c"), is_binary=True)


def test_headers_of_http_are_decoded() -> None:
    """Percents first inside of quotes."""
    assert http_header_text(b"a%20b%C3%A9%") == "a bé%".encode()
    assert http_header_text(b'"a\\"%22"') == b'a""'
    assert http_header_text(b'"') == b'"'
