"""Probe: readings at a steady rate, each of which causes a command, and how long each command takes to arrive.

Every sensor is too warm and too cold in turn, so each reading has one answer, and the answers of a sensor come in the
order of its readings. A latency is the time from just before a reading is given to the producer until its command is in
the consumer's hands, on one clock. Probe and job share the cores, so the probe does as little as it can for a record (6
us): messages are made beforehand, readings are sent in ticks of a millisecond, commands are decoded after the run.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.processes import Background
from benchmarks.topics import consumer, producer
from benchmarks.wire import decode_packed, reading_messages
from benchmarks.workload import OFF, ON, Commands, Floats, Rooms, places
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["Probe", "Trips", "percentiles", "probe_rooms"]

_SCOUTS: Final = 16
_SCOUT_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 180.0
_TICK_S: Final = 0.001
_LOOK_EVERY_S: Final = 0.5
_LAST_ANSWERS_S: Final = 30.0
_MOST_AT_ONCE: Final = 100_000


def probe_rooms(sensors: int) -> Rooms:
    """Return rooms for a probe with so many sensors, and some more that find out whether a job answers."""
    return Rooms(sensors + _SCOUTS, 0.45)


@dataclass(frozen=True)
class Trips:
    """What became of some readings: latencies of those answered, in ms, and how many had no or a wrong answer.

    `repeated` commands are those equal to the one before them, which a job that emits at least once may send again.
    """

    latency_ms: Floats
    readings: int
    unanswered: int
    wrong: int
    repeated: int


class Probe(Background):
    """Sends readings and takes commands; a context manager. Sending is done by the calling thread.

    Args:
        broker: where the topics are.
        readings, heaters: the topics.
        rooms: of `probe_rooms`; their settings must be on their topic, in the order of the sensors.
        partitions: those of the topic of readings.
        broker_stops: send nothing twice or in another order when the broker goes away, which costs some time.

    """

    def __init__(
        self,
        broker: KafkaBroker,
        readings: str,
        heaters: str,
        rooms: Rooms,
        partitions: int,
        *,
        broker_stops: bool = False,
    ) -> None:
        super().__init__()
        self._topic: Final = readings
        self._sensors: Final = rooms.count - _SCOUTS
        self._partitions: Final = partitions
        both = rooms.alternating(2)
        numbers = both.sensor_id.tolist()
        values = reading_messages(numbers, both.temperature)
        self._messages: Final = [
            (value, str(sensor).encode(), sensor % partitions)
            for value, sensor in zip(values, numbers, strict=True)
        ]
        self._turn: Final = rooms.count
        # A millisecond is one tick. Without it the broker gets a request for every few readings, and does not keep up.
        settings = {"linger.ms": 1, "compression.type": "none", "enable.idempotence": broker_stops}
        self._producer: Final = producer(broker, **settings)
        self._consumer: Final = consumer(broker, heaters, new_records=True)
        self._failed: BaseException | None = None
        self._taken: list[tuple[bytes, bytes, float]] = []
        self._count = 0
        self._sent = array("d")
        self._late = array("d")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._consumer.close()
        self._producer.flush(10)

    @property
    def sent(self) -> int:
        """The number of readings sent, without those that waited for the job."""
        return len(self._sent)

    def await_job(self, settled_s: float, check: Callable[[], None]) -> None:
        """Send readings of the last sensors until all have their commands within about `settled_s`.

        Settings come in the order of the sensors, so the job has all settings then. `check` raises if the job ended.
        """
        deadline = time.monotonic() + _PATIENCE_S
        scouts = range(self._sensors, self._sensors + _SCOUTS)
        looked = attempt = 0
        while True:
            for scout in scouts:
                self._produce(scout + self._turn * (attempt % 2))
            # The answers to the attempt before this one are others; a job that starts may never answer it.
            wanted = (OFF, ON)[attempt % 2]
            waiting = set(scouts)
            attempt += 1
            until = time.monotonic() + settled_s / 2
            while time.monotonic() < until:
                check()
                for data, lengths, _ in self._taken[looked:]:
                    looked += 1
                    sensors, codes = decode_packed(data, np.frombuffer(lengths, np.uint8))
                    waiting -= set(sensors[codes == wanted].tolist())
                if not waiting:
                    return
                time.sleep(_SCOUT_LOOK_S)
            if time.monotonic() > deadline:
                raise RuntimeError(f"No command came within {settled_s:.0f} s of its reading.")

    def send(self, count: int, rate_per_s: float, check: Callable[[], None]) -> None:
        """Send a number of readings at a steady rate. `check` raises if the job has ended."""
        begin, end = self.sent, self.sent + count
        look = start = time.monotonic()
        while self.sent < end:
            now = time.monotonic()
            due = min(end, begin + 1 + int((now - start) * rate_per_s))
            if due > self.sent:
                self._late.append(now - start - (self.sent - begin) / rate_per_s)
                self._send_to(due)
            if now - look > _LOOK_EVERY_S:
                look = now
                check()
                if self._failed is not None:
                    raise self._failed
            time.sleep(max(_TICK_S, start + (self.sent - begin) / rate_per_s - time.monotonic()))

    def _send_to(self, end: int) -> None:
        begin = self.sent
        self._sent.extend([time.time()] * (end - begin))
        for number in range(begin, end):
            self._produce(number % self._sensors + self._turn * (number // self._sensors % 2))
        self._producer.poll(0)

    def _produce(self, place: int) -> None:
        value, key, partition = self._messages[place]
        self._producer.produce(self._topic, value, key, partition)

    def run(self) -> None:
        """Take commands as they come."""
        client = self._consumer
        try:
            while not self.ended.is_set():
                first = client.poll(0.1)
                if first is None:
                    continue
                # What else is there already; without a timeout it does not wait for more.
                messages = [first, *client.consume(_MOST_AT_ONCE, 0)]
                now = time.time()
                values = [message.value() or b"" for message in messages if message.error() is None]
                self._taken.append((b"".join(values), bytes(map(len, values)), now))
                self._count += len(values)
        except BaseException as error:  # the thread that sends raises it
            self._failed = error

    def await_answers(self, timeout_s: float = _LAST_ANSWERS_S) -> None:
        """Wait until every reading has its command, or no command has come for `timeout_s`."""
        self._producer.flush(timeout_s)
        have, since, counted = self._count, time.monotonic(), -1
        while time.monotonic() - since < timeout_s:
            time.sleep(_LOOK_EVERY_S)
            if self._count != have:
                have, since = self._count, time.monotonic()
            elif counted != have:
                # It takes seconds for millions, so only when they have stopped coming.
                counted = have
                if not self.trips(0, self.sent).unanswered:
                    return

    def first_command_after(self, time_s: float) -> float | None:
        """Return when the first command after a time of the clock came, in seconds; None if there is none."""
        return next((at for _, _, at in self._taken if at > time_s), None)

    def sender_late_ms(self) -> float:
        """Return by how much the sender was behind its rate at worst, but for one tick in a hundred, in ms."""
        return 1000 * float(np.percentile(self._late, 99)) if self._late else 0.0

    def trips(self, begin: int, end: int) -> Trips:
        """Return what became of the readings with these numbers."""
        blocks = list(self._taken)
        lengths = np.frombuffer(b"".join(block[1] for block in blocks), np.uint8)
        sensors, codes = decode_packed(b"".join(block[0] for block in blocks), lengths)
        times = np.repeat([block[2] for block in blocks], [len(block[1]) for block in blocks])
        mine = sensors < self._sensors
        order = np.argsort(sensors[mine], kind="stable")
        found = Commands(sensors[mine][order], codes[mine][order])
        new = np.ones(len(found), bool)
        new[1:] = (np.diff(found.sensor_id) != 0) | (np.diff(found.code) != 0)
        found = Commands(found.sensor_id[new], found.code[new])
        numbers = places(found, np.bincount(found.sensor_id, minlength=1)) * self._sensors + found.sensor_id
        wrong = (numbers >= self.sent) | (found.code != np.where(numbers // self._sensors % 2 == 0, OFF, ON))
        received = np.full(self.sent, np.nan)
        known = numbers < self.sent
        received[numbers[known]] = times[mine][order][new][known]
        taken = received[begin:end] - np.frombuffer(self._sent, np.float64, end)[begin:]
        answered = ~np.isnan(taken)
        missing, repeated = int((~answered).sum()), int((~new).sum())
        return Trips(taken[answered] * 1000, end - begin, missing, int(wrong.sum()), repeated)


def percentiles(values: Floats) -> dict[str, float]:
    """Return p50, p95, p99 and the largest of some times in ms."""
    if not len(values):
        return dict.fromkeys(("p50_ms", "p95_ms", "p99_ms", "max_ms"), float("nan"))
    found: dict[str, Any] = {f"p{p}_ms": round(float(np.percentile(values, p)), 1) for p in (50, 95, 99)}
    return {**found, "max_ms": round(float(values.max()), 1)}
