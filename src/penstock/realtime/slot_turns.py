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
# After a round, its thread does other work for about this long, or for this share of the time of long rounds.
_BESIDE_S: Final = 0.001
_BESIDE_SHARE: Final = 0.1
# While nothing comes, the thread of the slot does it, with pauses that leave the cores to readers and brokers, for this
# long from the beginning of an interval, or for this share of the last one.
_PAUSE_S: Final = 0.006
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
        is_alone: whether the job has no other slot. Then what a step emits for the next one is processed in the same
            turn; otherwise the linger gathers what the slots emit.

    """

    def __init__(self, rounds: SlotRounds, inbox: Inbox, *, is_alone: bool) -> None:
        self._passes: Final = rounds.depth if is_alone else 1
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
        # Other work, until it is finished, and when a piece of it was done last.
        self._beside: Iterator[None] | None = None
        self._worked_s = 0.0
        self._begun_s = time.monotonic()
        self._pauses_until_s = 0.0

    def live(self, beside: Iterator[None], write: Write) -> None:
        """Run rounds as rows and times come, until all senders have ended. `write` takes rows for sinks and the driver.

        `beside` is other work, done in small pieces between the rounds.
        """
        now_s = time.monotonic()
        self._pauses_until_s = now_s + min(_PAUSES_FOR_S, _PAUSES_SHARE * (now_s - self._begun_s))
        self._begun_s = now_s
        with self._turn:
            self._context.run(self._rounds.begin_live, write)
            self._write, self._is_over = write, False
            self._beside = beside
        self._live(write)
        self._rounds.finish(beside)

    def _live(self, write: Write) -> None:
        while True:
            with self._turn:
                is_quiet = time.monotonic() >= self._worked_s + self._pause_s()
                self._run(write, works=is_quiet)
                if self._is_over:
                    self._write = None
                    return
                self._wakes_ms = self._rounds.due_ms
                wait_s = None if self._wakes_ms is None else max(0.0, (self._wakes_ms - now_ms()) / 1000)
                if self._beside is not None:
                    pause_s = self._pause_s()
                    wait_s = pause_s if wait_s is None else min(pause_s, wait_s)
                reading = self._rounds.reading
            if self._inbox.await_any(wait_s, until_woken=True):
                self._linger.wait(self._inbox, reading)

    def _pause_s(self) -> float:
        return _PAUSE_S if time.monotonic() < self._pauses_until_s else 0.0

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
        self._run(write, works=True)
        due_ms = self._rounds.due_ms
        is_sooner = due_ms is not None and (self._wakes_ms is None or due_ms < self._wakes_ms)
        if self._is_over or is_sooner:
            self._inbox.wake()

    def _run(self, write: Write, *, works: bool) -> None:
        """Run rounds for what has come. With `works`, do some other work then.

        Raises the error with which the inbox has failed.
        """
        begun_s = time.monotonic()
        try:
            self._take(write)
            for _ in range(1, self._passes):
                if self._inbox.waiting_bytes:
                    self._take(write)
            if works and not self._is_over and self._beside is not None:
                self._work_beside(time.monotonic() - begun_s)
        except BaseException as e:
            # Before another thread has the turn: it would run the next round on half a change.
            self._write = None
            self._inbox.fail(e)
            raise

    def _take(self, write: Write) -> None:
        found = self._inbox.take()
        if found:
            self._linger.begin()
        for delivery in found:
            self._note(delivery)
            self._rounds.add(delivery)
        if not self._is_over:
            self._is_over = self._context.run(self._rounds.run, write)

    def _work_beside(self, rounds_s: float) -> None:
        assert self._beside is not None
        if self._rounds.work_beside(self._beside, _BESIDE_S + _BESIDE_SHARE * rounds_s):
            self._beside = None
        self._worked_s = time.monotonic()

    def _note(self, delivery: Delivery) -> None:
        if delivery.times is not None and delivery.sender in self._rounds.readers:
            self._linger.note(delivery.sender, sum(delivery.times.counts))
