"""Clients of an HTTP receiver that keep sending while it is killed and restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx

__all__ = ["Sender"]


class Sender:
    """A client that sends each record with an id until it gets 202. Without `record_of` it sends the ids."""

    def __init__(
        self, url: str, name: int, record_of: Callable[[str], Any] = str, pause_s: float = 0.0
    ) -> None:
        self._url = url
        self._name = name
        self._record_of = record_of
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.taken: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def has_taken(self, count: int) -> bool:
        """Return whether so many records were acknowledged; raise if the thread has failed."""
        assert self._thread.is_alive()
        return len(self.taken) >= count

    def _send(self) -> None:
        with httpx.Client(trust_env=False, timeout=20) as client:
            while not self._stop.is_set():
                key = f"{self._name}-{len(self.taken)}"
                try:
                    answer = client.post(
                        self._url, json=self._record_of(key), headers={"idempotency-key": key}
                    )
                except httpx.TransportError:
                    # Nobody listens until the receiver is restarted.
                    self._stop.wait(0.1)
                    continue
                assert answer.status_code == 202
                self.taken.append(key)
                self._stop.wait(self._pause_s)
