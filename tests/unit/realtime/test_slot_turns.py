"""Slot turns: a reader with few records runs a round itself, and otherwise the thread of the slot does."""

from __future__ import annotations

import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from waiting import await_true

from penstock.realtime.inbox import Delivery, Inbox
from penstock.realtime.intake import Intake
from penstock.realtime.messages import now_ms
from penstock.realtime.slot_turns import SlotTurns
from penstock.runtime.packed_rows import PackedRow

READER = "0/readings"
LARGE = b"x" * (65 << 10)

seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="")


class Rounds:
    """Rounds that note which thread ran them for what; `on_run` is called in each."""

    depth = 3

    def __init__(self) -> None:
        self.readers = self.reading = frozenset({READER})
        self.due_ms: int | None = None
        self.on_run: Callable[[list[str]], None] = lambda _: None
        self.ran: list[tuple[list[str], int]] = []
        self.is_begun = False
        self.worked: list[int] = []
        self._waiting: list[str] = []

    def begin_live(self, _write: object) -> None:
        self.is_begun = True

    def add(self, delivery: Delivery) -> None:
        self._waiting.append(delivery.rows[0].partition if delivery.rows else "end")

    def run(self, _write: object) -> bool:
        found, self._waiting = self._waiting, []
        if found:
            self.ran.append((found, threading.get_ident()))
        self.on_run(found)
        return "end" in found

    def work_beside(self, beside: Iterator[None], _seconds: float) -> bool:
        self.worked.append(threading.get_ident())
        return next(beside, 1) == 1

    def finish(self, work: Iterator[None]) -> None:
        for _ in work:
            pass


class Watched(Inbox):
    """An inbox that knows whether the thread of the slot waits at it."""

    def __init__(self) -> None:
        super().__init__(Intake(1 << 20), 0)
        self.is_idle = False

    def await_any(self, timeout_s: float | None, *, until_woken: bool) -> bool:
        self.is_idle = True
        try:
            return super().await_any(timeout_s, until_woken=until_woken)
        finally:
            self.is_idle = False


class Slot:
    """Turns of a slot; its thread runs one interval."""

    def __init__(self, rounds: Rounds | None = None, pieces: int = 0, *, is_alone: bool = False) -> None:
        self.pieces = pieces
        self.rounds = Rounds() if rounds is None else rounds
        self.inbox = Watched()
        self.turns = SlotTurns(self.rounds, self.inbox, is_alone=is_alone)  # type: ignore[arg-type]  # it has the methods that turns call
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._live)

    def _live(self) -> None:
        try:
            self.turns.live(itertools.repeat(None, self.pieces), lambda _: None)
        except BaseException as e:  # the test looks at it
            self.error = e

    def __enter__(self) -> Self:
        self.thread.start()
        await_true(lambda: self.rounds.is_begun, "the interval has not begun")
        return self

    def await_idle(self) -> None:
        """Wait until the thread of the slot has nothing to do."""
        await_true(lambda: self.inbox.is_idle, "the thread of the slot is busy")

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the interval, and wait for the thread of the slot."""
        self.inbox.put(Delivery(READER, 0, 0, None))
        self.thread.join(30)
        assert not self.thread.is_alive()

    def read(self, name: str, body: bytes = b"") -> None:
        """Put a row into the inbox as a reader does."""
        row = PackedRow("step", 0, 0, name, 0, body)
        self.inbox.put(Delivery(READER, 0, 1, [row]), waits=True, wakes=False)
        self.turns.run_few()

    def by(self, name: str) -> Any:
        """Return the thread that ran the round with this row, once one has."""
        await_true(lambda: any(name in names for names, _ in self.rounds.ran), f"no round for {name}")
        return next(thread for names, thread in self.rounds.ran if name in names)


def test_a_reader_runs_the_round_for_few_records_itself() -> None:
    """The thread of the slot runs it for many, and ends the interval."""
    with Slot() as slot:
        slot.await_idle()
        slot.read("few")
        assert slot.rounds.ran == [(["few"], threading.get_ident())]
        slot.read("many", LARGE)
        assert slot.by("many") == slot.thread.ident
        slot.await_idle()
        slot.read("few again")
        assert slot.by("few again") == threading.get_ident()
    assert slot.rounds.ran[-1] == (["end"], slot.thread.ident)
    assert slot.error is None


def test_a_reader_does_not_wait_for_a_turn() -> None:
    """What it brings meanwhile is for the thread that has the turn."""
    goes_on = threading.Event()
    rounds = Rounds()
    rounds.on_run = lambda found: None if found != ["many"] else goes_on.wait(30) and None
    with Slot(rounds) as slot:
        slot.read("many", LARGE)
        slot.by("many")
        slot.read("one")
        slot.read("two")
        goes_on.set()
        assert slot.by("two") == slot.thread.ident
    assert [names for names, _ in slot.rounds.ran] == [["many"], ["one", "two"], ["end"]]


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_a_step_emits_for_the_next_is_processed_in_the_same_turn_without_other_slots(
    is_alone: bool,
) -> None:
    """With other slots, it waits for what they emit."""
    rounds = Rounds()
    slot = Slot(rounds, is_alone=is_alone)
    emitted = {"read": "of the first step", "of the first step": "of the second step"}

    def emit(found: list[str]) -> None:
        for name in found:
            if name in emitted:
                row = PackedRow("step", 0, 0, emitted[name], 0, b"row")
                slot.inbox.put(Delivery("slot/0", 0, 2, [row]))

    rounds.on_run = emit
    with slot:
        slot.await_idle()
        slot.read("read")
        others = {slot.by(name) for name in emitted.values()}
    assert others == {threading.get_ident() if is_alone else slot.thread.ident}


def test_what_comes_between_two_intervals_waits() -> None:
    """No thread runs rounds of an interval that has not begun."""
    slot = Slot()
    slot.read("early")
    assert not slot.rounds.ran
    with slot:
        assert slot.by("early") == slot.thread.ident


@pytest.mark.parametrize("body", [b"", LARGE], ids=["of a reader", "of the slot"])
def test_an_error_in_a_turn_ends_the_slot_before_its_next_round(body: bytes) -> None:
    """All threads raise it."""
    rounds = Rounds()

    def fail(found: list[str]) -> None:
        if found == ["bad"]:
            raise ValueError("bad record")

    rounds.on_run = fail
    slot = Slot(rounds)
    slot.thread.start()
    slot.await_idle()
    if body:
        slot.read("bad", body)
    else:
        with pytest.raises(ValueError, match="bad record"):
            slot.read("bad", body)
    slot.thread.join(30)
    assert isinstance(slot.error, ValueError)
    with pytest.raises(ValueError, match="bad record"):
        slot.read("next")
    assert [names for names, _ in rounds.ran] == [["bad"]]


def test_all_turns_share_a_context() -> None:
    """What a function sets, for example the precision of decimals, holds in all rounds."""
    rounds = Rounds()
    before: list[str] = []

    def note(found: list[str]) -> None:
        if found:
            before.append(seen.get())
            seen.set(found[0])

    rounds.on_run = note
    with Slot(rounds) as slot:
        slot.await_idle()
        slot.read("few")
        slot.read("many", LARGE)
        slot.by("many")
    assert before == ["", "few", "many"]
    assert not seen.get()


def test_the_thread_of_the_slot_wakes_for_a_timer_that_a_turn_of_a_reader_has_set() -> None:
    """Before that it waits without end."""
    rounds = Rounds()
    fired = threading.Event()

    def run(found: list[str]) -> None:
        if found == ["sets a timer"]:
            rounds.due_ms = now_ms() + 50
        elif rounds.due_ms is not None and rounds.due_ms <= now_ms():
            rounds.due_ms = None
            fired.set()

    rounds.on_run = run
    with Slot(rounds) as slot:
        slot.await_idle()
        slot.read("sets a timer")
        assert slot.by("sets a timer") == threading.get_ident()
        assert fired.wait(30)


def test_a_reader_does_a_piece_of_other_work_after_its_round() -> None:
    """Then it has some milliseconds until the next records come."""
    slot = Slot(pieces=100_000)
    # The interval before was long, so the thread of the slot pauses after its first piece.
    slot.turns._begun_s -= 3600.0
    slot.thread.start()
    slot.await_idle()
    slot.read("one")
    assert threading.get_ident() in slot.rounds.worked
    slot.end()
    assert slot.error is None


def test_a_slot_without_input_pauses_between_pieces_of_other_work_at_the_beginning_of_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does so for a fifth of the last interval, and a second at most."""
    now_s = 1000.0
    waits: list[float | None] = []

    class Waits(Inbox):
        def await_any(self, timeout_s: float | None, *, until_woken: bool) -> bool:
            nonlocal now_s
            waits.append(timeout_s)
            now_s += 0.125
            if timeout_s is None:
                self.put(Delivery(READER, 0, 0, None))
            return False

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    turns = SlotTurns(Rounds(), Waits(Intake(1 << 20), 0), is_alone=True)  # type: ignore[arg-type]  # it has the methods that turns call
    found = []
    for more_s in (0.0, 1.0, 60.0):
        now_s += more_s
        waits.clear()
        turns.live(itertools.repeat(None, 15), lambda _: None)
        found.append(waits[:])
    # An interval takes 2 s here, an eighth of a second for each wait.
    assert found[0] == [0.0] * 15 + [None]
    assert found[1] == [0.006] * 5 + [0.0] * 10 + [None], "a fifth of 3 s"
    assert found[2] == [0.006] * 8 + [0.0] * 7 + [None], "a second"
