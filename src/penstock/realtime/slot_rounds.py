"""Slot rounds: run all levels of one slot on the rows that arrive, in rounds, interval after interval."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import msgspec

from penstock.base.instants import instant_of
from penstock.engine.slot import Slot
from penstock.errors import JobFailedError
from penstock.metrics.source_times import SourceTimes
from penstock.realtime.inbox import Delivery, Inbox
from penstock.realtime.intake import Intake
from penstock.realtime.interval_meter import IntervalMeter
from penstock.realtime.messages import HISTORY, Round, now_ms
from penstock.runtime.level import Level, StoredStates
from penstock.runtime.packed_rows import (
    CHECKPOINT_COMMANDS,
    COUNTS,
    SLOT_COMMANDS,
    TIME,
    WAKE,
    WATERMARKS,
    PackedRow,
    counts_row,
    watermark_updates_of,
)
from penstock.runtime.plan import JobPlan
from penstock.runtime.writer import Forwarder
from penstock.state.kept_slots import SlotCache, kept_slots

__all__ = ["FOR_EACH_LEVEL", "RoundLinks", "Send", "SlotRounds", "Totals", "Write"]


class Send(Protocol):
    """Sends what a slot has emitted."""

    def __call__(
        self,
        sender: str,
        interval: int,
        rows: Iterable[PackedRow],
        times: SourceTimes | None,
        level: int,
        *,
        at_end: bool,
    ) -> list[PackedRow]:
        """Send rows of an interval to their slots and levels, and return those for sinks and the driver.

        With the rows go the times of the records that caused them. Rows for every level go to `level` first. With
        `at_end`, slots process the rows after all others of the interval.
        """


@dataclass(frozen=True)
class RoundLinks:
    """The links of a slot's rounds to the other slots and to the coordinator.

    Attributes:
        send: sends what a level emits.
        end_level: tells all slots, including this one, that the output of a level has ended in an interval.
        on_busy: called with the interval before its first round that has anything to do.

    """

    send: Send
    end_level: Callable[[str, int, int], None]
    on_busy: Callable[[int], None]


Write: TypeAlias = Callable[[Iterable[PackedRow]], None]
"""Takes the rows of a round for sinks and the driver."""

FOR_EACH_LEVEL: Final = frozenset({SLOT_COMMANDS, CHECKPOINT_COMMANDS, WATERMARKS, WAKE})
"""The destinations of rows that every level of a slot sees, one after the other."""

_Bundles: TypeAlias = dict[str, deque[Delivery]]

# A repeated interval may wait this long for a delivery: far longer than any round takes.
_STALLED_AFTER_S: Final = 120.0

# For these counts the newest value counts; others add up.
_VALUES: Final = frozenset({"keys", "held", "state_bytes", "settings", TIME})


class Totals:
    """The counts that rounds report, as one row each."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], tuple[int, bytes]] = {}

    def add(self, row: PackedRow) -> None:
        """Add a row of counts."""
        kind, name, group, count, body = msgspec.msgpack.decode(row.body)
        before = 0 if kind in _VALUES else self._found.get((kind, name, group), (0, b""))[0]
        self._found[kind, name, group] = (before + count, body)

    def rows(self) -> Iterator[PackedRow]:
        """Yield the totals, sorted."""
        for (kind, name, group), (count, body) in sorted(self._found.items()):
            yield counts_row(kind, name, count, group, body)


class SlotRounds:
    """The rounds of one slot. An interval is `open`, `begin_live` and `run` or `replay`, and `cut`.

    A round takes all deliveries that wait for a level, and runs the level on their rows. Commands for the end of the
    interval and the end of time have a round of their own in each level, after everything else of the interval. `done`
    has the rounds of the interval so far.

    `SlotTurns` decides which thread calls these methods: one at a time.

    Args:
        plan: the plan of the job.
        task: the number of the slot.
        readers: the senders that read streams, in all engines.
        inbox: the queue of deliveries.
        intake: learns how fast rounds are.
        links: to the other slots and the coordinator.
        cache: the tables that the worker keeps of slots.

    """

    def __init__(
        self,
        plan: JobPlan,
        task: int,
        readers: Iterable[str],
        inbox: Inbox,
        intake: Intake,
        links: RoundLinks,
        cache: SlotCache = kept_slots,
    ) -> None:
        self._inbox: Final = inbox
        self._intake: Final = intake
        self._links: Final = links
        self._sender: Final = f"slot/{task}"
        steps = self._steps = [[node.id for node in level] for level in plan.levels()]
        self._levels: Final = [Level(plan, step_ids, cache) for step_ids in steps]
        self._forwarders: Final = [Forwarder(plan, step_ids) for step_ids in steps]
        self.readers: Final = frozenset(readers)
        self._slots: Final = [f"slot/{number}" for number in range(plan.parallelism)]
        self._waiting: Final[list[_Bundles]] = [{} for _ in range(len(steps) + 1)]
        self._for_end: Final[list[_Bundles]] = [{} for _ in range(len(steps) + 1)]
        self._history: set[str] = set()
        self._on_caught_up: Callable[[], None] | None = None
        self._first_group: Final = sorted(plan.first_key_groups)[task]
        self._knows_timers = False

    @property
    def depth(self) -> int:
        """The number of levels."""
        return len(self._levels)

    def open(
        self, interval: int, states: StoredStates, slot: Slot, meter: IntervalMeter, *, wakes: bool
    ) -> None:
        """Begin an interval. With `wakes`, the first round of the slot takes over its seed."""
        self._interval = interval
        self._meter = meter
        self._offsets: list[dict[str, int]] = [{} for _ in self._levels]
        self.reading = self.readers
        self._through = dict.fromkeys(self._slots, 0)
        self._ended = 0
        self._is_busy = False
        self.totals = Totals()
        self.done: list[Round] = []
        for level in self._levels:
            level.open(states, slot)
        if wakes:
            row = PackedRow(WAKE, self._first_group, 0, "", 0, b"")
            self.add(Delivery(self._sender, interval, 1, [row]))

    def await_history(self, readers: Iterable[str], on_caught_up: Callable[[], None]) -> None:
        """Call a function once the slot has processed what these senders find in their streams at the start."""
        self._history, self._on_caught_up = set(readers), on_caught_up

    def begin_live(self, write: Write) -> None:
        """Begin to run rounds as rows and times come. `write` takes rows for sinks and the driver."""
        for number, level in enumerate(self._levels, 1):
            if level.wants_clock and not self._knows_timers:
                # The slot knows when it must run next only once it has run.
                self._round(Round(number, now_ms(), {}), write)
        self._knows_timers = True

    def run(self, write: Write) -> bool:
        """Run a round of each level for which something waits; return whether all senders have ended."""
        self._run_waiting(write)
        on_caught_up = self._on_caught_up
        if on_caught_up is not None and not self._history and not self._has_waiting():
            self._on_caught_up = None
            on_caught_up()
        self._end_levels(write)
        return self._ended > len(self._levels)

    def replay(self, rounds: Iterable[Round], write: Write) -> None:
        """Run these rounds, each once its deliveries have arrived. `write` takes rows for sinks and the driver.

        Raises JobFailedError when a delivery does not come.
        """
        for one in rounds:
            waiting = self._bundles(one)
            while any(len(waiting.get(sender, ())) < count for sender, count in one.taken.items()):
                self._inbox.await_any(_STALLED_AFTER_S, until_woken=False)
                found = self._inbox.take()
                if not found:
                    raise JobFailedError(_stalled_text(self._interval, self._steps_of(one.level)))
                for delivery in found:
                    self.add(delivery)
            self._round(one, write)

    def _steps_of(self, level: int) -> list[str]:
        """Return the steps of a level; level 0 has none, only the records that go straight to sinks."""
        return self._steps[level - 1] if level else []

    def work_beside(self, beside: Iterator[None], seconds: float) -> bool:
        """Do other work, in small pieces, for some time; return whether it is finished."""
        begun_s = time.perf_counter()
        is_over = True
        for _ in beside:
            if time.perf_counter() >= begun_s + seconds:
                is_over = False
                break
        self._meter.storing_s += time.perf_counter() - begun_s
        return is_over

    def finish(self, work: Iterator[None]) -> None:
        """Do all of the other work."""
        begun_s = time.perf_counter()
        for _ in work:
            pass
        self._meter.storing_s += time.perf_counter() - begun_s

    def cut(self, *, goes_on: bool) -> Iterator[PackedRow | None]:
        """End the interval. The iterator stores the state in pieces, and yields None after each.

        At last it yields the totals of all rounds of the interval. With `goes_on`, the next one may run meanwhile.
        """
        begun_s = time.perf_counter()
        cuts = [level.cut(goes_on=goes_on) for level in self._levels]
        self._meter.storing_s += time.perf_counter() - begun_s
        return _stored(cuts, self.totals)

    def add(self, delivery: Delivery) -> None:
        """Add a delivery for the next rounds."""
        if delivery.rows is not None:
            self._add_rows(delivery, delivery.rows)
        elif delivery.through == HISTORY:
            self._history.discard(delivery.sender)
        elif delivery.sender in self._through:
            self._through[delivery.sender] = delivery.through
        else:
            self.reading -= {delivery.sender}

    def _add_rows(self, delivery: Delivery, rows: list[PackedRow]) -> None:
        for_end: list[PackedRow] = []
        at_once: list[PackedRow] = []
        for row in rows:
            if row.destination == CHECKPOINT_COMMANDS:
                for_end.append(row._replace(destination=SLOT_COMMANDS))
            else:
                (for_end if _ends_time(row) else at_once).append(row)
        if for_end:
            # They wait for the end of the interval, which always comes.
            self._note_work()
        for bundles, some in ((self._for_end, for_end), (self._waiting, at_once)):
            if some:
                to = self._for_end if delivery.at_end else bundles
                to[delivery.level].setdefault(delivery.sender, deque()).append(delivery._replace(rows=some))

    def _note_work(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._links.on_busy(self._interval)

    def _bundles(self, one: Round) -> _Bundles:
        return (self._for_end if one.at_end else self._waiting)[one.level]

    def _run_waiting(self, write: Write) -> None:
        """Run a round of each level for which something waits, or a timer is due. A level that has ended rests."""
        for number in range(self._ended, len(self._waiting)):
            at_ms = now_ms()
            taken = _all_of(self._waiting[number])
            due_ms = self._levels[number - 1].next_timer_ms if number else None
            if taken or (due_ms is not None and due_ms <= at_ms):
                self._note_work()
                self._round(Round(number, at_ms, taken), write)

    def _round(self, one: Round, write: Write) -> None:
        begun_s = time.perf_counter()
        self.done.append(one)
        waiting = self._bundles(one)
        taken = [waiting[sender].popleft() for sender, count in one.taken.items() for _ in range(count)]
        rows = [row for delivery in taken for row in delivery.rows or ()]
        times = SourceTimes.merged(delivery.times for delivery in taken)
        if one.level:
            number = one.level - 1
            level, forwarder = self._levels[number], self._forwarders[number]
            times = times or _due(level, one.now_ms)
            made = level.run_round(rows, instant_of(one.now_ms))
            leaving = list(forwarder.forward(made, self._offsets[number]))
            self._intake.note(sum(delivery.nbytes for delivery in taken), time.perf_counter() - begun_s)
            rows = self._links.send(
                self._sender, self._interval, leaving, times, one.level + 1, at_end=one.at_end
            )
        self._meter.causes = times
        write(self._without_counts(rows))
        self._meter.rounds_s += time.perf_counter() - begun_s

    def _without_counts(self, rows: Iterable[PackedRow]) -> Iterator[PackedRow]:
        for row in rows:
            if row.destination == COUNTS:
                self.totals.add(row)
            else:
                yield row

    def _end_levels(self, write: Write) -> None:
        """End the levels that have all their input, each with a round for the rows that waited for the end."""
        while self._ended <= len(self._levels):
            level = self._ended
            behind = any(through < level - 1 for through in self._through.values())
            if self.reading or behind or any(self._waiting[level].values()):
                return
            taken = _all_of(self._for_end[level])
            if taken:
                self._round(Round(level, now_ms(), taken, at_end=True), write)
            self._ended += 1
            if 0 < level < len(self._levels):
                self._links.end_level(self._sender, self._interval, level)

    def _has_waiting(self) -> bool:
        return any(bundles for waiting in self._waiting for bundles in waiting.values())

    @property
    def due_ms(self) -> int | None:
        """The time at which the next timer is due, in milliseconds since 1970; None without a timer."""
        timers = [level.next_timer_ms for level in self._levels[max(self._ended - 1, 0) :]]
        return min((at for at in timers if at is not None), default=None)


def _ends_time(row: PackedRow) -> bool:
    """Return whether time ends with a row. What comes from another slot after that would be late."""
    return row.destination == WATERMARKS and any(update.ends for update in watermark_updates_of([row]))


def _due(level: Level, now_ms: int) -> SourceTimes | None:
    """Return the time of the earliest due timer of a level, the cause of the output of a round without records."""
    due_ms = level.next_timer_ms
    return None if due_ms is None or due_ms > now_ms else SourceTimes.at(due_ms, 1)


def _stalled_text(interval: int, steps: Sequence[str]) -> str:
    place = f"the step {' and '.join(steps)}" if steps else "the sinks"
    return (
        f"Interval {interval} is repeated after a failure, and what came to {place} the first time has not come again "
        f"within {_STALLED_AFTER_S:g} s. A function before it may decide by the clock or by chance, "
        "and so emit something else: let it use the time of its context. If no sink is exactly once, remove the files "
        f"{interval} and {interval}.rounds from the folder `intervals` of the checkpoint, and the interval begins anew."
    )


def _stored(cuts: Iterable[Iterator[PackedRow | None]], totals: Totals) -> Iterator[PackedRow | None]:
    for row in itertools.chain.from_iterable(cuts):
        if row is None:
            yield None
        else:
            totals.add(row)
    yield from totals.rows()


def _all_of(bundles: _Bundles) -> dict[str, int]:
    """Return the number of bundles of each sender."""
    return {sender: len(found) for sender, found in sorted(bundles.items()) if found}
