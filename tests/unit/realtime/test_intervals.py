"""Intervals: a job in real time emits and keeps what the model computes from its input, also when intervals
repeat.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from domains import Limit, Reading
from live_runner import LiveRunner
from reliability import noting

import penstock as ps
from penstock.errors import FencedError
from penstock.realtime import slot_rounds
from penstock.realtime.interval_files import Interval
from penstock.realtime.interval_task import SlotFailedError
from penstock.realtime.messages import Attend, send


@dataclass
class Alert:
    room: int
    value: int
    total: int


class Sum(ps.ConnectedProcessFunction):
    """Emits each value above the limit of its room, with the sum of all values so far."""

    limit = ps.ValueState(int)
    total = ps.ValueState(int)

    def process_control(self, control: Limit, ctx: ps.Context) -> None:
        self.limit.set(control.limit)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Alert]:
        total = (self.total.get() or 0) + record.value
        self.total.set(total)
        if record.value > (self.limit.get() or 0):
            yield Alert(record.room, record.value, total)


class Count(ps.ProcessFunction):
    """Numbers the alerts of each value."""

    seen = ps.ValueState(int)

    def process_record(self, record: Alert, ctx: ps.Context) -> Iterator[Alert]:
        seen = (self.seen.get() or 0) + 1
        self.seen.set(seen)
        yield Alert(record.room, record.value, seen)


def sums_job() -> ps.Job:
    job = ps.Job("sums", key_groups=16)
    readings = job.data_stream("readings", schema=Reading).key_by("room")
    limits = job.control_stream("limits", schema=Limit).key_by("room")
    alerts = readings.connect(limits).process("sum", Sum(), output=Alert)
    alerts.sink_to("alerts")
    alerts.key_by("value").process("count", Count(), output=Alert).sink_to("counts")
    return job


class Held(ps.ProcessFunction):
    """Keeps the newest value of a room; 0 removes it."""

    value = ps.ValueState(int)

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Alert]:
        if record.value:
            self.value.set(record.value)
        else:
            self.value.clear()
        yield Alert(record.room, record.value, 0)


def keys_job() -> ps.Job:
    job = ps.Job("keys", key_groups=16)
    readings = job.data_stream("readings", schema=Reading).key_by("room")
    readings.process("held", Held(), output=Alert).sink_to("alerts")
    return job


def fold(readings: list[tuple[int, int]], limits: dict[int, int]) -> list[tuple[int, int, int]]:
    totals: dict[int, int] = {}
    found = []
    for room, value in readings:
        totals[room] = totals.get(room, 0) + value
        if value > limits.get(room, 0):
            found.append((room, value, totals[room]))
    return found


def by_room(alerts: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int, int]]]:
    found: dict[int, list[tuple[int, int, int]]] = {}
    for alert in alerts:
        found.setdefault(alert[0], []).append(alert)
    return found


def emitted(outcome, sink: str) -> list[tuple[int, int, int]]:  # type: ignore[no-untyped-def]
    return [(one.room, one.value, one.total) for one in outcome.outputs.get(sink, ())]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_are_processed_as_they_come(tmp_path: Path, parallelism: int) -> None:
    """Over several intervals, while records arrive, both steps see each record once, in the order of its key."""
    made = random.Random(parallelism)
    readings = [(made.randrange(20), made.randrange(1, 9)) for _ in range(600)]
    limits = {room: made.randrange(6) for room in range(20)}
    alerts: list[tuple[int, int, int]] = []
    counts: list[tuple[int, int, int]] = []
    with LiveRunner(sums_job(), tmp_path, parallelism) as live:
        live.send("limits", *({"room": room, "limit": limit} for room, limit in limits.items()))
        for part in range(6):

            def during(part: int = part) -> None:
                for room, value in readings[part * 100 : part * 100 + 100]:
                    live.send("readings", {"room": room, "value": value})
                    time.sleep(0.0005)

            outcome = live.run(during)
            alerts += emitted(outcome, "alerts")
            counts += emitted(outcome, "counts")
        outcome = live.run()
        alerts += emitted(outcome, "alerts")
        counts += emitted(outcome, "counts")
    expected = fold(readings, limits)
    assert by_room(alerts) == by_room(expected)
    assert len(counts) == len(expected)
    seen = {value: sorted(total for _, one, total in counts if one == value) for _, value, _ in expected}
    assert seen == {value: list(range(1, 1 + len(found))) for value, found in seen.items()}
    assert live.records == {"sum": 600, "count": len(expected)}


def lost_and_repeated(live: LiveRunner, during, outcome_of) -> None:  # type: ignore[no-untyped-def]
    """Run an interval whose state Spark loses, and run it again; both runs must give the same bytes."""
    first = live.run(during, commits=False)
    state = live.after
    live.forget()
    again = live.run()
    assert live.states == state
    assert again.data == first.data
    outcome_of(again)


def repeat_intervals(folder: Path, parallelism: int, count: int) -> None:
    """Repeat a number of intervals, each with new engines; both runs must give the same bytes."""
    made = random.Random(parallelism)
    repeated = 0
    with LiveRunner(sums_job(), folder, parallelism, interval_s=0.03) as live:

        def during() -> None:
            for _ in range(made.randrange(30)):
                live.send("readings", {"room": made.randrange(20), "value": made.randrange(1, 9)})
                if made.random() < 0.2:
                    live.send("limits", {"room": made.randrange(20), "limit": made.randrange(6)})
                time.sleep(0.001)

        def note(outcome) -> None:  # type: ignore[no-untyped-def]
            nonlocal repeated
            repeated += bool(outcome.outputs.get("alerts"))

        for _ in range(count):
            # The lost engines are zero, one or two intervals old.
            for _ in range(made.randrange(3)):
                live.run(during)
            lost_and_repeated(live, during, note)
    assert repeated > count // 4


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.chaos), 2, 3])
def test_a_repeated_interval_gives_the_same_bytes(tmp_path: Path, parallelism: int) -> None:
    """The order in which engines took records is on disk before any output is visible, so new engines repeat
    it.
    """
    repeat_intervals(tmp_path, parallelism, count=6)


@pytest.mark.chaos
def test_a_hundred_repeated_intervals_give_the_same_bytes(tmp_path: Path) -> None:
    """The same a hundred times."""
    with noting("replays", "-k a_hundred_repeated_intervals") as injected:
        injected.add("lost commit of an interval in real time", 100)
        repeat_intervals(tmp_path, parallelism=2, count=100)


class Whim(ps.ProcessFunction):
    """Emits only in the first run, regardless of its state: a function that is not deterministic."""

    emitted = False

    def process_record(self, record: Reading, ctx: ps.Context) -> Iterator[Alert]:
        if not Whim.emitted:
            Whim.emitted = True
            yield Alert(record.room, record.value, 0)


def test_an_interval_that_cannot_be_repeated_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error: a step waits for records that the function before it does not emit again."""
    monkeypatch.setattr(slot_rounds, "_STALLED_AFTER_S", 0.5)
    job = ps.Job("whims", key_groups=16)
    alerts = job.data_stream("readings", schema=Reading).key_by("room").process("whim", Whim(), output=Alert)
    alerts.key_by("value").process("count", Count(), output=Alert).sink_to("counts")
    with LiveRunner(job, tmp_path, 1) as live:
        live.run(lambda: live.send("readings", {"room": 1, "value": 5}), commits=False)
        live.forget()
        with pytest.raises(ExceptionGroup) as raised:
            live.run()
    (cause,) = raised.value.exceptions
    assert "Interval 0 is repeated after a failure, and what came to the step" in str(cause)
    assert "let it use the time of its context" in str(cause)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_are_processed_between_intervals(tmp_path: Path, parallelism: int) -> None:
    """Engines continue while Spark commits an interval and starts the tasks of the next one."""
    with LiveRunner(sums_job(), tmp_path, parallelism) as live:
        live.run(lambda: live.send("readings", {"room": 1, "value": 5}))
        for number in range(2, 6):
            live.send("readings", {"room": 1, "value": 5})
            # No task is there.
            live.await_written("alerts", 1)
            assert emitted(live.run(), "alerts") == [(1, 5, 5 * number)]


def test_the_keys_of_all_rounds_of_an_interval_are_counted(tmp_path: Path) -> None:
    """Keys that appear or vanish after the first round count too, also in a repeated interval."""
    counted: list[tuple[dict[str, int], dict[str, int]]] = []
    with LiveRunner(keys_job(), tmp_path) as live:
        # Round by round: a room appears with its first reading, and vanishes with a reading of 0.
        for rounds in ([(1, 5), (2, 5), (3, 5)], [(4, 5), (1, 0), (2, 0)]):

            def during(rounds: list[tuple[int, int]] = rounds) -> None:
                for number, (room, value) in enumerate(rounds, 1):
                    live.send("readings", {"room": room, "value": value})
                    live.await_written("alerts", number)

            first = live.run(during, commits=False)
            live.forget()
            counted.append((first.counts("keys"), live.run().counts("keys")))
    assert counted == [({"held": 3}, {"held": 3}), ({"held": 2}, {"held": 2})]


@pytest.mark.parametrize("parallelism", [pytest.param(2, marks=pytest.mark.chaos), 3])
def test_readers_wait_while_slots_have_too_much_to_do(tmp_path: Path, parallelism: int) -> None:
    """This holds also at the ends of intervals, where a circular wait would be a deadlock."""
    made = random.Random(parallelism)
    readings = [(made.randrange(50), made.randrange(1, 9)) for _ in range(6000)]
    alerts: list[tuple[int, int, int]] = []
    with LiveRunner(sums_job(), tmp_path, parallelism, interval_s=0.02, waiting_bytes=500) as live:

        def sending() -> None:
            for start in range(0, len(readings), 20):
                some = readings[start : start + 20]
                live.send("readings", *({"room": key, "value": value} for key, value in some))
                time.sleep(0.001)
                while start >= 3000 and live.number < 1:
                    time.sleep(0.001)

        sender = threading.Thread(target=sending)
        sender.start()
        while live.records.get("sum", 0) < len(readings):
            alerts += emitted(live.run(), "alerts")
        sender.join()
    assert by_room(alerts) == by_room(fold(readings, {}))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_task_that_spark_runs_again_begins_anew(tmp_path: Path, parallelism: int) -> None:
    """What the engines did since the last commit is lost with them, and is done again exactly once."""
    with LiveRunner(sums_job(), tmp_path, parallelism) as live:
        live.run(lambda: live.send("readings", {"room": 1, "value": 5}))

        def during() -> None:
            live.send("readings", {"room": 1, "value": 5})
            live.await_written("alerts", 1)
            live.lose_task()

        with pytest.raises(ExceptionGroup):
            live.run(during)
        assert emitted(live.run(), "alerts") == [(1, 5, 10)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_controls_that_are_there_come_before_data(tmp_path: Path, parallelism: int) -> None:
    """At a start no reading is processed before the limits that were sent before the start."""
    for number in range(8):
        with LiveRunner(sums_job(), tmp_path / str(number), parallelism) as live:
            live.send("readings", *({"room": room, "value": 5} for room in range(20)))
            live.send("limits", *({"room": room, "limit": 9} for room in range(20)))
            assert live.run().outputs.get("alerts", []) == []
            assert live.records["sum"] == 20


def test_a_task_that_fails_ends_the_others(tmp_path: Path) -> None:
    """Spark runs all tasks again, and no output is doubled."""
    with LiveRunner(sums_job(), tmp_path, 3) as live:
        # The slot belongs to one task.
        live.send("readings", *({"room": 1, "value": 5} for _ in range(20)))
        live.sinks["alerts"][0].fails_at_write = True
        with pytest.raises(ExceptionGroup) as raised:
            live.run()
        kinds = sorted(type(error).__name__ for error in raised.value.exceptions)
        assert kinds == ["PeerLostError", "PeerLostError", "SlotFailedError"]
        (cause,) = [error for error in raised.value.exceptions if isinstance(error, SlotFailedError)]
        assert "OSError: the disk is full" in str(cause)
        live.sinks["alerts"][0].fails_at_write = False
        assert emitted(live.run(), "alerts") == [(1, 5, 5 * number) for number in range(1, 21)]


def test_a_drained_interval_reads_what_is_there(tmp_path: Path) -> None:
    """It ends when the available input is read, however long intervals are."""
    with LiveRunner(sums_job(), tmp_path, 2, drains=True) as live:
        live.send("readings", *({"room": room, "value": 5} for room in range(500)))
        begun_s = time.monotonic()
        assert len(emitted(live.run(), "alerts")) == 500
        assert time.monotonic() - begun_s < 30


@pytest.mark.parametrize("parallelism", [1, 3])
def test_controls_come_before_data_of_a_drained_interval(tmp_path: Path, parallelism: int) -> None:
    """A bounded run ends when the available input is read, but only after its control records are processed."""
    for number in range(8):
        folder = tmp_path / str(number)
        with LiveRunner(sums_job(), folder, parallelism, drains=True) as live:
            live.send("readings", *({"room": room, "value": 5} for room in range(20)))
            live.send("limits", *({"room": room, "limit": 9} for room in range(20)))
            assert live.run().outputs.get("alerts", []) == []
            assert live.records["sum"] == 20


def test_an_interval_ends_early_on_request(tmp_path: Path) -> None:
    """A stopping job does not wait for the regular end of its interval."""
    with LiveRunner(sums_job(), tmp_path, 2) as live:
        begun_s = time.monotonic()
        assert emitted(live.run(lambda: live.send("readings", {"room": 1, "value": 5})), "alerts") == [
            (1, 5, 5)
        ]
        assert time.monotonic() - begun_s < live.interval_s / 10


def test_an_interval_ends_by_itself(tmp_path: Path) -> None:
    """It ends a fixed time after its first work."""
    with LiveRunner(sums_job(), tmp_path, 2, interval_s=0.2) as live:

        def during() -> None:
            live.send("readings", {"room": 1, "value": 5})
            live.await_written("alerts", 1)
            # Nobody requests its end before the second record arrives.
            live.await_end()
            live.send("readings", {"room": 1, "value": 5})

        assert emitted(live.run(during), "alerts") == [(1, 5, 5)]
        assert emitted(live.run(), "alerts") == [(1, 5, 10)]


def test_positions_and_rounds_are_on_disk(tmp_path: Path) -> None:
    """The positions of all streams, and what each task took."""
    with LiveRunner(sums_job(), tmp_path, 2) as live:
        live.run(lambda: live.send("readings", {"room": 1, "value": 5}))
        interval = live.files.read(0)
    assert isinstance(interval, Interval)
    assert interval.positions["readings"] == {"position": 1}
    assert len(interval.tasks) == 2
    assert any(one.rounds for one in interval.tasks)


def test_no_output_is_committed_before_the_next_run_finds_the_interval(tmp_path: Path) -> None:
    """Its files are written when they are confirmed; if writing fails, for example because another run took
    over, the interval fails.
    """
    with LiveRunner(sums_job(), tmp_path, 2) as live:

        def confirm() -> None:
            assert live.files.read(0) is not None
            raise FencedError("Another run has taken over the checkpoint.")

        live.confirm = confirm
        live.send("readings", {"room": 1, "value": 5})
        with pytest.raises(ExceptionGroup):
            live.run()
        assert live.coordinator is not None
        assert isinstance(live.coordinator.error, FencedError)
        assert live.sinks["alerts"][0].finished == []
    # The run that continues repeats the same work.
    with LiveRunner(sums_job(), tmp_path, 2) as live:
        live.send("readings", {"room": 1, "value": 5})
        assert emitted(live.run(), "alerts") == [(1, 5, 5)]


def test_strangers_change_nothing(tmp_path: Path) -> None:
    """The coordinator ignores connections that do not speak as a task of the run."""
    with LiveRunner(sums_job(), tmp_path, 2) as live:
        assert live.coordinator is not None
        place = live.coordinator.address

        def during() -> None:
            for message in (b"\xff" * 8, b"\0\0\0\1\xc1", b"GET / HTTP/1.1\r\n\r\n"):
                with socket.create_connection((place.host, place.port)) as stranger:
                    stranger.sendall(message)
            with socket.create_connection((place.host, place.port)) as stranger:
                send(stranger, Attend("\u00fcnknown", 0, 1))
                assert stranger.recv(1) == b""
            live.send("readings", {"room": 1, "value": 5})

        assert emitted(live.run(during), "alerts") == [(1, 5, 5)]
