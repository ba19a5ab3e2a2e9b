"""MQTT receiver: messages are acknowledged when they are in the journal, not before."""

from __future__ import annotations

import hashlib
import time
from typing import Final

from penstock.bindings.types import MqttBinding
from penstock.mqtt.mqtt_connection import MqttConnection, open_subscription
from penstock.sources.group_commits import GroupCommits
from penstock.sources.journal import JournalWriter
from penstock.sources.receiver import Receiver

__all__ = ["MqttReceiver", "session_of"]

_SILENCE_S: Final = 1.0


def session_of(binding: MqttBinding, lineage: str) -> str:
    """Return the name of the session of a stream in the life of a checkpoint: the client id that the broker knows.

    Another filter has another session, since a session keeps its subscriptions.
    """
    if binding.client_id is not None:
        return binding.client_id
    digest = hashlib.sha256(f"{lineage}/{binding.stream}/{binding.topic}".encode()).hexdigest()
    return f"penstock-{digest[:12]}"


class MqttReceiver(Receiver[MqttConnection]):
    """A receiver of the messages of a topic filter.

    The broker keeps what comes while the job is stopped, and sends again what a crash has left without an
    acknowledgement; some of these messages may be in the journal already. A bounded run ends when nothing has come for
    a second.
    """

    def __init__(
        self, binding: MqttBinding, session: str, journal: JournalWriter, *, bounded: bool = False
    ) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding = binding
        self._session = session

    def _connect(self) -> MqttConnection:
        # What comes before the subscription is lost, so the stream is only ready with it.
        return open_subscription(self._binding, self._session)

    def _receive(self, connection: MqttConnection) -> None:
        most = max(1, self._binding.prefetch // 2)
        came_s = time.monotonic()
        with GroupCommits(self._journal, most, connection.acknowledge) as commits:
            while not self._stopping.is_set():
                arrived = connection.wait(commits.wait_s)
                for one in arrived:
                    commits.add(one.body, one)
                if arrived:
                    came_s = time.monotonic()
                elif self._bounded and time.monotonic() > came_s + _SILENCE_S:
                    break
                commits.step()
            commits.finish()
