"""Topic growth: notices, while engines follow topics, that partitions have appeared, or that topics are gone."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.errors import PenstockError
from penstock.sources.kafka_log import KafkaLog

__all__ = ["TopicGrowth"]

_LOOK_S: Final = 1.0
_WARN_S: Final = 60.0
_log: Final = logging.getLogger("penstock.sources")


class TopicGrowth:
    """A thread that looks for the partitions of topics; `has_changed` says whether they differ from those followed.

    It has a thread of its own, since an unreachable broker delays the answer. Readers wait for such a broker; this
    thread says so.

    Args:
        topics: the topics by stream.
        notify: called when one has changed.

    """

    def __init__(self, topics: Mapping[str, KafkaLog], notify: Callable[[], None]) -> None:
        # Separate logs with separate clients, since the engines use theirs at the same time.
        self._topics: Final = {name: dataclasses.replace(log) for name, log in topics.items()}
        self._notify: Final = notify
        self._followed: dict[str, set[str]] | None = None
        self._warned_s: Final[dict[str, float]] = {}
        self._lock: Final = threading.Lock()
        self._closing: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="topic growth", daemon=True)
        self.has_changed = False

    def start(self) -> None:
        """Start to look."""
        if self._topics:
            self._thread.start()

    def follow(self, positions: Mapping[str, Iterable[str]]) -> None:
        """Note which partitions are followed now, by stream."""
        with self._lock:
            self._followed = {name: set(positions[name]) for name in self._topics}
            self.has_changed = False

    def close(self) -> None:
        """Stop looking, without waiting for an answer under way."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_S):
            if self._followed is not None and not self.has_changed:
                self._look()

    def _look(self) -> None:
        followed = self._followed
        assert followed is not None
        changed = [name for name, log in self._topics.items() if self._has_changed(log, followed[name])]
        with self._lock:
            # A new session may have begun meanwhile, with the changed partitions.
            self.has_changed = bool(changed) and self._followed is followed
        if self.has_changed:
            self._notify()

    def _has_changed(self, log: KafkaLog, followed: set[str]) -> bool:
        stream = log.binding.stream
        try:
            has_changed = log.has_changed(followed)
        except PenstockError as e:
            now_s = time.monotonic()
            if now_s >= self._warned_s.get(stream, -math.inf) + _WARN_S:
                self._warned_s[stream] = now_s
                _log.warning("%s The stream waits.", e, extra={"stream": stream})
            return False
        self._warned_s.pop(stream, None)
        return has_changed
