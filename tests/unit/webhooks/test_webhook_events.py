"""Webhooks that send CloudEvents: what a server gets in each mode, and a receiver of penstock that reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hook_server import Asked, HookServer, Reply

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import HttpListenBinding, WebhookBinding
from penstock.errors import SchemaError
from penstock.machine.local_server import free_port
from penstock.records.cloud_events import CloudEventsFormat
from penstock.records.event_headers import event_headers_of, http_header_text, http_header_value
from penstock.records.schemas import record_type
from penstock.registries.message_formats import message_format
from penstock.sinks.base import RejectingTask, Rejection, TaskContext
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.webhooks.http_receiver import HttpReceiver
from penstock.webhooks.webhook_sink import WebhookSink

ALERT = record_type("n BIGINT NOT NULL, room STRING NOT NULL, note STRING, level BIGINT")
ROWS = [
    {"n": 1, "room": "kitchen", "note": "hot", "level": 3},
    {"n": 2, "room": "caf\u00e9 \u2603", "note": ' "100%" ', "level": None},
    {"n": 3, "room": "hall", "note": None, "level": -4},
]
EVENTS = (
    "?format=cloudevents&attributes=note,level:lev&event_id=a-{n}&event_source=/plant/{room}&event_type=alert"
)


@pytest.fixture
def server() -> Iterator[HookServer]:
    with HookServer() as started:
        yield started


def send(url: str, query: str = "") -> list[Rejection]:
    binding = parse_binding("alerts", f"{url}{EVENTS}{query}", "sink")
    assert isinstance(binding, WebhookBinding)
    sink = WebhookSink(binding, message_format(binding, ALERT, None))
    task = sink.task(TaskContext(0, 0, 0, "line"), ALERT)
    assert isinstance(task, RejectingTask)
    task.write(pa.RecordBatch.from_pylist(ROWS, schema=ALERT.schema), None)
    rejected = task.rejections()
    task.finish()
    return rejected


def test_an_event_in_json_has_its_attributes_and_its_record(server: HookServer) -> None:
    """And a content type that says so; attributes without a value are left out."""
    send(server.url)
    assert {one.headers["Content-Type"] for one in server.taken} == {
        "application/cloudevents+json; charset=UTF-8"
    }
    fixed = {"specversion": "1.0", "type": "alert", "datacontenttype": "application/json"}
    assert [one.content for one in server.taken] == [
        {
            **fixed,
            "id": f"a-{row['n']}",
            "source": f"/plant/{row['room']}",
            **{
                name: row[field]
                for field, name in (("note", "note"), ("level", "lev"))
                if row[field] is not None
            },
            "data": {"n": row["n"], "room": row["room"]},
        }
        for row in ROWS
    ]


def test_several_events_are_a_batch(server: HookServer) -> None:
    """With the content type of batches, also when the server refuses one, and the others come again alone."""
    server.reply = lambda asked: Reply(422 if any(one["id"] == "a-2" for one in asked.content) else 200)
    rejected = send(server.url, "&records_per_request=3")
    assert [one.row for one in rejected] == [1]
    assert {one.headers["Content-Type"] for one in server.asked} == {
        "application/cloudevents-batch+json; charset=UTF-8"
    }
    assert [event["id"] for one in server.taken for event in one.content] == ["a-1", "a-3"]


def test_the_binary_mode_has_attributes_in_headers(server: HookServer) -> None:
    """Each character that the binding of CloudEvents names is a percent and its bytes; the body is the data alone."""
    send(server.url, "&event_mode=binary")

    def attributes(asked: Asked) -> dict[str, str]:
        return {
            name.lower(): value for name, value in asked.headers.items() if name.lower().startswith("ce-")
        }

    assert {one.headers["Content-Type"] for one in server.taken} == {"application/json"}
    assert [one.content for one in server.taken] == [{"n": row["n"], "room": row["room"]} for row in ROWS]
    fixed = {"ce-specversion": "1.0", "ce-type": "alert"}
    assert [attributes(one) for one in server.taken] == [
        {**fixed, "ce-id": "a-1", "ce-source": "/plant/kitchen", "ce-note": "hot", "ce-lev": "3"},
        {
            **fixed,
            "ce-id": "a-2",
            "ce-source": "/plant/caf%C3%A9%20%E2%98%83",
            "ce-note": "%20%22100%25%22%20",
        },
        {**fixed, "ce-id": "a-3", "ce-source": "/plant/hall", "ce-lev": "-4"},
    ]


def test_a_header_is_read_back_as_it_was() -> None:
    """Whatever characters the attribute has."""
    for code in (*range(0x20, 0x17F), 0x2603, 0x1F321):
        text = f"{chr(code)}a{chr(code)}".encode()
        value = http_header_value(text)
        assert value.isascii()
        assert " " not in value
        assert http_header_text(value.encode()) == text


@pytest.mark.parametrize("query", ["", "&records_per_request=2", "&event_mode=binary"])
def test_a_receiver_gets_the_same_records(tmp_path: Path, query: str) -> None:
    """In each mode, at another job that listens."""
    taken = "?format=cloudevents&attributes=note,level:lev"
    binding = parse_binding("alerts", f"http-listen://127.0.0.1:{free_port()}/alerts{taken}", "data")
    assert isinstance(binding, HttpListenBinding)
    assert binding.events is not None
    events = event_headers_of(binding.events.attributes, ALERT, "ce-")
    with HttpReceiver(binding, tmp_path, JournalWriter(tmp_path), events=events):
        assert send(f"http://127.0.0.1:{binding.port}/alerts", query) == []
    log = JournalLog(tmp_path)
    raw = [
        record
        for split in log.splits(0, log.latest(0, limited=False), 1)
        for chunk in log.read([split], None)  # type: ignore[arg-type]  # raw records have no type
        for record in chunk.raw.to_pylist()  # type: ignore[union-attr]
    ]
    assert all(json.loads(one)["specversion"] == "1.0" for one in raw)
    found = CloudEventsFormat(ALERT, binding.events.attributes).decode(pa.array(raw, pa.binary()))
    assert found.bad == []
    assert found.batch.to_pylist() == ROWS


def test_a_template_must_fit_the_records() -> None:
    """Which is said at the start."""
    uri = f"http://127.0.0.1:1/hook{EVENTS}".replace("a-{n}", "{note}")
    binding = parse_binding("alerts", uri, "sink")
    assert isinstance(binding, WebhookBinding)
    with pytest.raises(SchemaError, match=r"\{note\}, which must be a field of text or an integer"):
        message_format(binding, ALERT, None)
