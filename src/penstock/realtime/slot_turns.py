"""Slot turns: the threads of an engine take turns to run the rounds of its slot."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator
from typing import Final

from penstock.realtime.inbox import Delivery, Inbox
from penstock.realtime.linger import Linger
from penstock.realtime.messages import now_ms
from penstock.realtime.slot_rounds import SlotRounds, Write

__all__ = ["SlotTurns"]

# A reader with up to so many bytes for its slot runs the round itself.
_FEW_BYTES: Final = 64 << 10
# Between two rounds, a slot does other work for about this long, or for this share of the time of long rounds.
_BESIDE_S: Final = 0.001
_BESIDE_SHARE: Final = 0.1
# While nothing comes, it pauses so long between two pieces of that work, which would else keep a core from the
# reader and the broker. It does so for this long, or for this share of the last interval.
_PAUSE_S: Final = 0.003
_PAUSES_FOR_S: Final = 1.0
_PAUSES_SHARE: Final = 0.2


class SlotTurns:
    """The turns of threads at the rounds of a slot.

    The thread of the slot runs rounds in `live`. A reader that has brought few records runs a round for them itself, in
    `run_few`: to wake another thread would take a tenth of the time of such a round, and two threads of one interpreter
    would disturb each other. All turns share a context (`contextvars`), so functions find in it what they have set.

    Args:
        rounds: the rounds of the slot.
        inbox: the queue of deliveries.

    """

    def __init__(self, rounds: SlotRounds, inbox: Inbox) -> None:
        self._rounds: Final = rounds
        self._inbox: Final = inbox
        self._linger: Final = Linger()
        self._turn: Final = threading.Lock()
        self._context: Final = contextvars.copy_context()
        # None while no interval is live.
        self._write: Write | None = None
        self._is_over = False
        # When the thread of the slot wakes for a timer, if it does.
        self._wakes_ms: int | None = None
        self._begun_s = time.monotonic()
        self._length_s = 0.0

    def live(self, beside: Iterator[None], write: Write) -> None:
        """Run rounds as rows and times come, until all senders have ended. `write` takes rows for sinks and the driver.

        `beside` is other work, done in small pieces between the rounds.
        """
        self._note_interval()
        with self._turn:
            self._context.run(self._rounds.begin_live, write)
            self._write, self._is_over = write, False
        self._live(beside, write)
        self._rounds.finish(beside)

    def _note_interval(self) -> None:
        """Note how long the last interval was."""
        now_s = time.monotonic()
        self._length_s, self._begun_s = now_s - self._begun_s, now_s

    def _live(self, beside: Iterator[None], write: Write) -> None:
        pauses_until_s = self._begun_s + min(_PAUSES_FOR_S, _PAUSES_SHARE * self._length_s)
        is_finished = False
        while True:
            with self._turn:
                begun_s = time.monotonic()
                self._run(write)
                if self._is_over:
                    self._write = None
                    return
                rounds_s = time.monotonic() - begun_s
                is_finished = is_finished or self._rounds.work_beside(
                    beside, _BESIDE_S + _BESIDE_SHARE * rounds_s
                )
                self._wakes_ms = self._rounds.due_ms
                wait_s = None if self._wakes_ms is None else max(0.0, (self._wakes_ms - now_ms()) / 1000)
                reading = self._rounds.reading
            if not is_finished:
                pause_s = _PAUSE_S if time.monotonic() < pauses_until_s else 0.0
                wait_s = pause_s if wait_s is None else min(pause_s, wait_s)
            if self._inbox.await_any(wait_s, until_woken=True):
                self._linger.wait(self._inbox, reading)

    def run_few(self) -> None:
        """Run a round for what a reader has put into the inbox, if that is not much and no other thread has the turn.

        Otherwise the thread of the slot does. Raises what the round raises, which ends the engine.
        """
        if self._inbox.waiting_bytes > _FEW_BYTES or not self._turn.acquire(blocking=False):
            self._inbox.wake()
            return
        try:
            self._run_in_turn()
        finally:
            self._turn.release()

    def _run_in_turn(self) -> None:
        write = self._write
        if write is None or not self._linger.is_over(self._inbox, self._rounds.reading):
            self._inbox.wake()
            return
        self._run(write)
        due_ms = self._rounds.due_ms
        is_sooner = due_ms is not None and (self._wakes_ms is None or due_ms < self._wakes_ms)
        if self._is_over or is_sooner:
            self._inbox.wake()

    def _run(self, write: Write) -> None:
        """Run rounds for what has come. Raises the error with which the inbox has failed."""
        try:
            found = self._inbox.take()
            if found:
                self._linger.begin()
            for delivery in found:
                self._note(delivery)
                self._rounds.add(delivery)
            if not self._is_over:
                self._is_over = self._context.run(self._rounds.run, write)
        except BaseException as e:
            # Before another thread has the turn: it would run the next round on half a change.
            self._write = None
            self._inbox.fail(e)
            raise

    def _note(self, delivery: Delivery) -> None:
        if delivery.times is not None and delivery.sender in self._rounds.readers:
            self._linger.note(delivery.sender, sum(delivery.times.counts))
