"""Messages of a large block are all published over MQTT, although packets have few ids; the broker is a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import MqttBinding
from penstock.mqtt import mqtt_connection
from penstock.mqtt.mqtt_connection import MqttConnection
from penstock.sinks.publishing_sink import OutgoingMessage

IDS = 65_535
TAKEN = SimpleNamespace(value=0)
REFUSED = SimpleNamespace(value=151)


class ModelledClient:
    """A client of paho: ids begin again after the last, and a message whose id is in use is not sent."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._last = 0
        self._in_flight: dict[int, bytes] = {}
        self.taken: list[bytes] = []
        self.most = 0

    def connect(self, *_: Any, **__: Any) -> None:
        """Wait for `loop`, which has the answer."""

    def publish(self, topic: str, body: bytes, *_: Any) -> Any:
        self._last = self._last % IDS + 1
        self._in_flight.setdefault(self._last, body)
        self.most = max(self.most, len(self._in_flight))
        return SimpleNamespace(mid=self._last)

    def loop(self, timeout_s: float) -> int:
        """Let the broker take the connection, then judge some messages at a time, and refuse the empty ones."""
        if not self._last:
            self.on_connect(self, None, None, TAKEN, None)
        for number in list(self._in_flight)[:500]:
            body = self._in_flight.pop(number)
            self.taken += [body] if body else []
            self.on_publish(self, None, number, TAKEN if body else REFUSED, None)
        return 0

    def disconnect(self) -> None:
        """Do nothing."""


def test_each_message_of_a_block_is_sent_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one with more messages than there are ids; each is judged by itself."""
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
