"""Control latency: how soon a setting is in force that is sent at the same moment as data, in real time.

For one sensor after the other a setting is sent, and from the same moment on a reading each millisecond that the old
and the new setting judge differently. The first of them that the new setting judged says from when on it was in force;
the time counts from sending the setting to sending that reading. Which one it was is found by counting: behind each
of these readings comes one that any setting judges alike and opposite, so every reading under the new setting causes a
command, and none under the old one. `answer` is the time until the first command under the new setting is in the
consumer's hands.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, Producer

from benchmarks.command import option, run_command
from benchmarks.peers.contestants import Penstock
from benchmarks.probe import Probe, percentiles, probe_rooms
from benchmarks.processes import Program
from benchmarks.report import note, print_markdown
from benchmarks.topics import Topics, broker_or_own, consumer, load_settings, producer
from benchmarks.wire import decode_commands, reading_messages, setting_message
from benchmarks.workload import ON
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["LIMIT_MS", "Sizes", "main", "measure"]

LIMIT_MS: Final = 20.0
"""The largest p50 of the time until a setting is in force."""

_DELTA: Final = 1.0
_SETTLED_S: Final = 5.0
_PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.1
_GRACE_S: Final = 0.05
_SCOUTS: Final = 16


@dataclass(frozen=True)
class Sizes:
    """How many settings are sent, and how often: pauses are random, so that they meet ends of intervals too."""

    settings: int = 300
    warm_up: int = option(30, "settings before those that count")
    pause_s: float = option(0.2, "the mean time between two settings; default: %(default)s")
    step_ms: float = option(1.0, "the time between two readings; default: %(default)s")
    partitions: int = 2
    cores: int = 2
    checkpoint_interval: str = option("5s", "the interval of real time; 0s: micro-batches")


@dataclass
class _Trial:
    """A setting sent: how long until it was in force and until its first command was there, in ms."""

    in_force_ms: float
    answer_ms: float


class _Sender:
    """Sends settings and readings, and takes the commands.

    Sensors from `scouts` on find out when all that was sent before is processed: there are enough of them for every
    partition and every slot.
    """

    def __init__(self, broker: KafkaBroker, topics: Topics, sizes: Sizes, scouts: int) -> None:
        self._topics: Final = topics
        self._sizes: Final = sizes
        self._scouts: Final = range(scouts, scouts + _SCOUTS)
        self._scouted = 0
        self._producer: Final[Producer] = producer(broker, **{"linger.ms": 0, "compression.type": "none"})
        self._consumer: Final[Consumer] = consumer(broker, topics.heaters, new_records=True)

    def close(self) -> None:
        """End the clients."""
        self._consumer.close()
        self._producer.flush(10)

    def trial(self, sensor: int, desired: float, check: Callable[[], None]) -> _Trial:
        """Send a setting for a sensor that has the desired temperature, and readings until a command follows it.

        Raises RuntimeError if no command follows within 20 s, and what `check` raises if the job has ended.
        """
        # Too warm for the setting that holds but too cold for the new one; and too warm for both.
        test, opposite = reading_messages([sensor] * 2, np.array([desired + 10.0, desired + 100.0]))
        given = setting_message(sensor, desired + 20.0, _DELTA)
        self._send(sensor, opposite)
        self._producer.flush(10)
        times: list[float] = []
        count, begin = 0, time.perf_counter()
        self._producer.produce(self._topics.settings, given, str(sensor))
        while not count:
            if time.perf_counter() - begin > _PATIENCE_S:
                check()
                raise RuntimeError(
                    f"No command follows the setting of sensor {sensor} within {_PATIENCE_S:.0f} s."
                )
            times.append(time.perf_counter())
            self._send(sensor, test)
            self._send(sensor, opposite)
            self._producer.poll(0)
            due = begin + len(times) * self._sizes.step_ms / 1000
            while not count and (left := due - time.perf_counter()) > 0:
                count = self._take(left)[0].count(sensor)
        answer_ms = (time.perf_counter() - begin) * 1000
        count += self._rest(check).count(sensor)
        if count > len(times):
            raise RuntimeError(f"Sensor {sensor} had {count} commands after {len(times)} readings.")
        return _Trial((times[len(times) - count] - begin) * 1000, answer_ms)

    def _send(self, sensor: int, value: bytes) -> None:
        partition = sensor % self._sizes.partitions
        self._producer.produce(self._topics.readings, value, str(sensor), partition)

    def _rest(self, check: Callable[[], None]) -> list[int]:
        """Return the sensors whose heaters were switched on by what was sent so far and not yet taken."""
        self._scouted += 1
        temperature = 1000.0 if self._scouted % 2 else -1000.0
        for scout in self._scouts:
            self._send(scout, reading_messages([scout], np.array([temperature]))[0])
        self._producer.flush(10)
        switched: list[int] = []
        waiting = set(self._scouts)
        deadline = time.monotonic() + _PATIENCE_S
        while waiting:
            if time.monotonic() > deadline:
                check()
                raise RuntimeError(
                    f"Readings of {len(waiting)} sensors had no command within {_PATIENCE_S:.0f} s."
                )
            on, both = self._take(_POLL_S)
            switched += on
            waiting -= set(both)
        # Partitions of the topic of commands may come in another order.
        return switched + self._take(_GRACE_S)[0]

    def _take(self, timeout_s: float) -> tuple[list[int], list[int]]:
        """Return the sensors of the commands that have come: of those to switch on, and of all."""
        first = self._consumer.poll(timeout_s)
        messages = [first, *self._consumer.consume(10_000, 0)] if first is not None else []
        values = [message.value() or b"" for message in messages if message.error() is None]
        sensors, codes = decode_commands(values)
        return sensors[codes == ON].tolist(), sensors.tolist()


def measure(sizes: Sizes, work: Path, *, broker: KafkaBroker | None = None) -> dict[str, Any]:
    """Start the job, send settings, and measure when they were in force, on the given broker or a new one."""
    trials = sizes.warm_up + sizes.settings
    rooms = probe_rooms(trials + _SCOUTS)
    with broker_or_own(broker) as kafka:
        topics = Topics.named(kafka, work.name)
        topics.create(kafka, sizes.partitions)
        load_settings(kafka, topics.settings, rooms)
        job = Penstock(interval=sizes.checkpoint_interval)
        with Program(job.command(topics, work, sizes.cores), work / "log") as program:
            with Probe(kafka, topics.readings, topics.heaters, rooms, sizes.partitions) as probe:
                probe.await_job(_SETTLED_S, program.check)
            note("the job answers")
            sender = _Sender(kafka, topics, sizes, trials)
            found = []
            chance = random.Random(1)
            for sensor, desired in enumerate(rooms.desired.tolist()[:trials]):
                time.sleep(chance.uniform(0.0, 2 * sizes.pause_s))
                found.append(sender.trial(sensor, desired, program.check))
            sender.close()
    counted = found[sizes.warm_up :]
    return {
        "settings": sizes.settings,
        "step_ms": sizes.step_ms,
        "checkpoint_interval": sizes.checkpoint_interval,
        "in_force": percentiles(np.array([trial.in_force_ms for trial in counted])),
        "answer": percentiles(np.array([trial.answer_ms for trial in counted])),
    }


def show(result: dict[str, Any]) -> None:
    """Print the measurements as a table."""
    names = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    what = "from sending a setting until"
    labels = {"in_force": "readings sent are judged by it", "answer": "the first command by it is consumed"}
    rows = [[label, *(f"{result[key][name]:.1f} ms" for name in names)] for key, label in labels.items()]
    title = f"{result['settings']} settings, interval {result['checkpoint_interval']}"
    print_markdown(title, (what, "p50", "p95", "p99", "longest"), rows, left=(what,))


def main() -> None:
    """Measure, print a table, and with -o json the result as the last line."""
    result = run_command(Sizes, measure, show)
    late_ms = result["in_force"]["p50_ms"]
    if late_ms > LIMIT_MS and result["checkpoint_interval"] != "0s":
        raise SystemExit(
            f"A setting is in force after {late_ms:.1f} ms (p50); the limit is {LIMIT_MS:.0f} ms."
        )


if __name__ == "__main__":
    main()
