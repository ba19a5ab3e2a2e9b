"""Setting: what every load is given, and how it starts its job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.contestants import penstock_command
from benchmarks.probe import Probe, Trips, probe_rooms
from benchmarks.processes import EXAMPLE, MemoryWatch, Program, TreeUsage, proportional_bytes
from benchmarks.topics import Topics, consumer, count_records, load_settings
from benchmarks.workload import Rooms
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["JOBS", "Figures", "LoadError", "Probed", "Running", "Setting"]

JOBS: Final = Path(__file__).resolve().parent / "jobs.py"
_SETTLED_S: Final = 5.0
_STOP_S: Final = 90.0

Figures = dict[str, Any]
"""Figures of a load by name; units stand last."""


class LoadError(RuntimeError):
    """What came out of a load is not right; the message says what."""


@dataclass(frozen=True)
class Setting:
    """Where a load runs, and how much of it: `scale` is 1, or less in a small form."""

    broker: KafkaBroker
    work: Path
    name: str
    interval: str
    seconds: float
    scale: float
    partitions: int
    cores: int
    memory_mb: int | None = None

    def topics(self) -> Topics:
        """Return the names of this load's topics."""
        return Topics.named(self.broker, f"{self.work.name}-{self.name}")

    def create_topics(self) -> Topics:
        """Create the topics."""
        topics = self.topics()
        topics.create(self.broker, self.partitions)
        return topics

    def named(self, name: str) -> Setting:
        """Return the same setting with topics and a folder of its own."""
        return dataclasses.replace(self, name=name)

    def outputs(self) -> int:
        """Return how many records are on the topic of outputs."""
        topic = self.topics().heaters
        client = consumer(self.broker, topic)
        try:
            return count_records(client, topic, self.partitions)
        finally:
            client.close()

    def scaled(self, count: int) -> int:
        """Return a number of records in proportion to the scale."""
        return max(1, round(count * self.scale))

    @contextmanager
    def thermostat(self) -> Iterator[Running]:
        """Run the temperature-control job on this load's topics."""
        topics = self.topics()
        names = {"readings": topics.readings, "settings": topics.settings, "heaters": topics.heaters}
        uris = {name: f"{self._uri(topic)}?format=protobuf" for name, topic in names.items()}
        uris["readings"] += "&start=earliest"
        with self._run(str(EXAMPLE / "job.py"), uris) as running:
            yield running

    @contextmanager
    def own_job(self, name: str) -> Iterator[Running]:
        """Run a job of `jobs.py`, whose topics carry JSON."""
        topics = self.topics()
        uris = {
            "readings": f"{self._uri(topics.readings)}?start=earliest",
            "heaters": self._uri(topics.heaters),
        }
        with self._run(f"{JOBS}:{name}", uris) as running:
            yield running

    @contextmanager
    def probed(self, sensors: int, *, broker_stops: bool = False) -> Iterator[Probed]:
        """Run the temperature-control job with a probe of so many sensors, once it answers."""
        topics = self.create_topics()
        rooms = probe_rooms(sensors)
        load_settings(self.broker, topics.settings, rooms)
        with (
            self.thermostat() as running,
            Probe(
                self.broker,
                topics.readings,
                topics.heaters,
                rooms,
                self.partitions,
                broker_stops=broker_stops,
            ) as probe,
        ):
            probe.await_job(_SETTLED_S, running.check)
            yield Probed(running, probe, rooms)

    def _uri(self, topic: str) -> str:
        return f"kafka://{self.broker.bootstrap}/{topic}"

    @contextmanager
    def _run(self, job: str, uris: dict[str, str]) -> Iterator[Running]:
        folder = self.work / self.name
        folder.mkdir(parents=True, exist_ok=True)
        command = penstock_command(job, uris, folder / "checkpoint", self.interval, self.cores)
        if self.memory_mb is not None:
            command += ["--memory", str(self.memory_mb)]
        with Program(command, folder / "log", _STOP_S) as program, MemoryWatch(program.pid) as memory:
            yield Running(program, memory)


@dataclass(frozen=True)
class Running:
    """A running job."""

    program: Program
    memory: MemoryWatch

    def check(self) -> None:
        """Raise if it has ended."""
        self.program.check()

    @property
    def cpu_s(self) -> float:
        """The CPU time of all its processes so far."""
        return TreeUsage.of(self.program.pid).cpu_s

    @property
    def memory_mb(self) -> int:
        """The memory of all its processes now, in which a page that they share counts once."""
        return sum(proportional_bytes(self.program.pid).values()) >> 20

    @property
    def resident_mb(self) -> int:
        """The sum of the resident memory of all its processes now."""
        return TreeUsage.of(self.program.pid).memory_bytes >> 20


@dataclass(frozen=True)
class Probed:
    """A running job that answers, and its probe."""

    job: Running
    probe: Probe
    rooms: Rooms

    def send(self, seconds: float, rate_per_s: float) -> None:
        """Send readings for a time."""
        self.probe.send(round(seconds * rate_per_s), rate_per_s, self.job.check)

    def check_answers(self, *, repeated: bool = False) -> Trips:
        """Return what became of all readings. Raises LoadError unless each has had its command, and not twice.

        `repeated`: outputs were interrupted, after which they may come again.
        """
        self.probe.await_answers()
        trips = self.probe.trips(0, self.probe.sent)
        if trips.unanswered or trips.wrong or (trips.repeated and not repeated):
            raise LoadError(
                f"Of {trips.readings:,} readings {trips.unanswered:,} have no command and {trips.wrong:,} a wrong one; "
                f"{trips.repeated:,} commands are repeated."
            )
        return trips
