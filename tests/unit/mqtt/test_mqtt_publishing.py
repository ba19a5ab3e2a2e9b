"""All messages of a large block are published over MQTT, though packet ids are few; the broker is simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import MqttBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.mqtt import mqtt_connection
from penstock.mqtt.mqtt_connection import MqttConnection
from penstock.mqtt.mqtt_sink import MqttSink
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks import patience
from penstock.sinks.base import RejectingTask, TaskContext
from penstock.sinks.publishing_sink import OutgoingMessage

IDS = 65_535
TAKEN = SimpleNamespace(value=0)
MAX_PACKET = 1000
REFUSED = SimpleNamespace(value=151)


class ModelledClient:
    """A paho client: ids wrap around, and a message whose id is in use is not sent."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._last = 0
        self._in_flight: dict[int, bytes] = {}
        self.taken: list[bytes] = []
        self.most = 0

    def connect(self, *_: Any, **__: Any) -> None:
        """Return at once: `loop` receives the answer."""

    def publish(self, topic: str, body: bytes, *_: Any) -> Any:
        self._last = self._last % IDS + 1
        self._in_flight.setdefault(self._last, body)
        self.most = max(self.most, len(self._in_flight))
        return SimpleNamespace(mid=self._last)

    def loop(self, timeout_s: float) -> int:
        """Accept the connection, then acknowledge some messages at a time, and refuse empty ones."""
        if not self._last:
            self.on_connect(self, None, None, TAKEN, SimpleNamespace(MaximumPacketSize=MAX_PACKET))
        for number in list(self._in_flight)[:500]:
            body = self._in_flight.pop(number)
            self.taken += [body] if body else []
            self.on_publish(self, None, number, TAKEN if body else REFUSED, None)
        return 0

    def disconnect(self) -> None:
        """Do nothing."""


def test_each_message_of_a_block_is_sent_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may have more messages than there are ids; each has its own result."""
    monkeypatch.setattr(mqtt_connection.paho, "Client", ModelledClient)
    binding = parse_binding("alerts", "mqtt://127.0.0.1:1883/alerts", "sink")
    assert isinstance(binding, MqttBinding)
    count = IDS + 5000
    bodies = [b"" if number == 3 else b"%d" % number for number in range(count)]
    messages = {number: OutgoingMessage("alerts", body) for number, body in enumerate(bodies)}
    with MqttConnection(binding, None) as connection:
        judged = list(connection.publish(messages))
        client: Any = connection._client
    assert [number for number, _ in judged] == list(range(count))
    assert [number for number, reason in judged if reason] == [3]
    assert client.taken == [body for body in bodies if body]
    assert client.most < IDS


def test_a_message_at_which_the_broker_would_end_the_connection_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size of its packet counts, to the byte, with its properties."""
    monkeypatch.setattr(mqtt_connection.paho, "Client", ModelledClient)
    binding = parse_binding("alerts", "mqtt://127.0.0.1:1883/alerts", "sink")
    assert isinstance(binding, MqttBinding)
    connection = MqttConnection(binding, None)
    head, properties = 3 + 2 + len("alerts") + 2, len(b"\x26\0\x0fpenstock-origin\0\x03a/1") + 1
    fits = [
        OutgoingMessage("alerts", b"x" * (MAX_PACKET - head - 1)),
        OutgoingMessage("alerts", b"x" * (MAX_PACKET - head - properties), "a/1"),
    ]
    larger = [message._replace(body=message.body + b"x") for message in fits]
    judged = dict(connection.publish(dict(enumerate([*fits, *larger]))))
    assert [bool(judged[number]) for number in range(4)] == [False, False, True, True]
    assert "takes packets of at most 1000 bytes, and it would have 1001" in judged[2]
    assert connection._client.taken == [message.body for message in fits]  # type: ignore[attr-defined]  # the model has it


class SilentLimit(ModelledClient):
    """A client of a broker that silently closes the connection at a message of more than 30 bytes."""

    all_taken: ClassVar[list[bytes]] = []

    def loop(self, timeout_s: float) -> int:
        large = [body for body in self._in_flight.values() if len(body) > 30]
        if large:
            return int(mqtt_connection.paho.MQTT_ERR_CONN_LOST)
        self.all_taken.extend(body for body in self._in_flight.values() if body not in self.all_taken)
        return super().loop(timeout_s)


@pytest.mark.parametrize("limit", ["", "?max_message_bytes=30"])
def test_a_message_at_which_a_broker_ends_the_connection_is_named_or_left_out(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gives no reason, so the error names the message that fails alone, and possible causes."""
    monkeypatch.setattr(mqtt_connection.paho, "Client", SilentLimit)
    rests_s: list[float] = []
    # A clock that only rests move.
    clock = SimpleNamespace(monotonic=lambda: sum(rests_s), sleep=rests_s.append)
    monkeypatch.setattr(patience, "time", clock)
    SilentLimit.all_taken.clear()
    binding = parse_binding("alerts", f"mqtt://127.0.0.1:1883/{len(limit)}/{{room}}{limit}", "sink")
    assert isinstance(binding, MqttBinding)
    kind = record_type("room STRING, note STRING")
    rows = [{"room": f"r{n}", "note": 50 * "x" if n == 6 else "-"} for n in range(9)]
    task = MqttSink(binding, format_of("json", kind), kind).task(TaskContext(0, 0, 0, "line"), kind)
    assert isinstance(task, RejectingTask)
    batch = pa.RecordBatch.from_pylist(rows, kind.schema)
    if limit:
        task.write(batch, None)
        (left_out,) = task.rejections()
        assert left_out.row == 6
        assert left_out.reason == "It has 73 bytes, and max_message_bytes of the URI is 30."
        assert len(SilentLimit.all_taken) == 8
        return
    with pytest.raises(ExternalSystemError) as raised:
        task.write(batch, None)
    assert "A message of 73 bytes to '0/r6' is not taken when it is sent alone, either" in str(raised.value)
    assert "add max_message_bytes=N to the URI" in str(raised.value)
    assert len(SilentLimit.all_taken) == 6


@pytest.mark.parametrize(
    ("template", "value", "is_sent"),
    [
        ("{room}/t", "h\u00e4ll 1", True),
        ("{room}/t", "$SYS", False),
        ("$own/{room}", "$SYS", True),
        ("a/{room}", "a/b", False),
        ("a/{room}", "\x7f", False),
        ("a/{room}", "\uffff", False),
        ("a/{room}", "x" * 65_534, False),
    ],
)
def test_a_topic_that_no_broker_takes_is_no_topic(template: str, value: str, is_sent: bool) -> None:
    """Brokers close the connection of its publisher, so the run could never get past the record."""
    binding = parse_binding("alerts", f"mqtt://127.0.0.1:1883/{template}", "sink")
    assert isinstance(binding, MqttBinding)
    kind = record_type("room STRING")
    sink = MqttSink(binding, format_of("json", kind), kind)
    routes = sink.routes(pa.RecordBatch.from_pylist([{"room": value}], kind.schema))
    assert routes == [template.replace("{room}", value) if is_sent else None]


def test_certificates_that_are_not_there_are_named() -> None:
    """It is not the broker's failure, for which the sink would wait."""
    binding = parse_binding("alerts", "mqtts://127.0.0.1:1/alerts?cafile=/not/there.pem", "sink")
    assert isinstance(binding, MqttBinding)
    with pytest.raises(BindingError, match=r"certificates of mqtts \(/not/there.pem\) cannot be used"):
        MqttConnection(binding, None)


def test_a_brace_that_is_left_open_is_told() -> None:
    """It would otherwise be part of each topic."""
    binding = parse_binding("alerts", "mqtt://127.0.0.1:1883/hall/{room", "sink")
    assert isinstance(binding, MqttBinding)
    kind = record_type("room STRING")
    with pytest.raises(BindingError, match="the name of a field in each pair of braces"):
        MqttSink(binding, format_of("json", kind), kind)
