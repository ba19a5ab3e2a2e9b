"""A publisher that a broker blocks, since it is short of memory or disk, says so."""

from __future__ import annotations

import types
from typing import Any

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import ExchangeBinding
from penstock.rabbitmq import rabbitmq_publisher
from penstock.rabbitmq.rabbitmq_publisher import RabbitPublisher


class Connection:
    """A connection on which nothing happens but what the broker tells when it is open."""

    is_open = is_closed = False

    def __init__(self, _: object, on_open: Any, on_failed: Any, on_lost: Any) -> None:
        self.on_failed = on_failed
        self.on_lost = on_lost
        self._on_open = on_open
        self._on_blocked: Any = None
        loop = {"stop": lambda: None, "remove_timeout": lambda _: None, "close": lambda: None}
        self.ioloop = types.SimpleNamespace(start=self._start, call_later=lambda *_: None, **loop)

    def add_on_connection_blocked_callback(self, callback: Any) -> None:
        self._on_blocked = callback

    def add_on_connection_unblocked_callback(self, callback: Any) -> None:
        """It stays blocked."""

    def channel(self, on_open_callback: Any) -> None:
        """It never opens."""

    def _start(self) -> None:
        self._on_open(self)
        method = types.SimpleNamespace(reason="low on memory")
        self._on_blocked(self, types.SimpleNamespace(method=method))


def test_the_alarm_of_the_broker_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that there is no answer."""
    monkeypatch.setattr(rabbitmq_publisher.pika, "SelectConnection", Connection)
    monkeypatch.setattr(rabbitmq_publisher, "ANSWER_S", 0.1)
    binding = parse_binding("alerts", "amqp://u:p@h:1/%2F/alerts", "sink")
    assert isinstance(binding, ExchangeBinding)
    with pytest.raises(ConnectionError, match="it is low on memory and blocks those that publish"):
        RabbitPublisher(binding)
