"""Live runner: intervals of a job in this process, with real tasks, sockets and files, but without Spark."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from memory_log import MemoryLog
from waiting import await_true

from penstock.objects.allowed import AllowedPlaces
from penstock.realtime.coordinator import Coordinator
from penstock.realtime.coordinator_links import CheckpointLinks, CoordinatedStreams
from penstock.realtime.interval_files import IntervalFiles
from penstock.realtime.interval_task import run_interval, start_engine
from penstock.realtime.messages import Attend, connect, send
from penstock.realtime.slot_engine import JobInRealTime
from penstock.records.types import RecordType
from penstock.records.wire_formats import format_of
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.command_reader import COMMAND_NODE, CommandReader
from penstock.runtime.packed_rows import DEAD_LETTER_TYPE, DEAD_LETTERS
from penstock.runtime.plan import JobPlan
from penstock.runtime.record_reader import StreamReader
from penstock.runtime.slots import slot_keys
from penstock.runtime.start_signal import START_NODE, StartReader
from penstock.runtime.writer import Writer
from penstock.sinks.base import TaskContext
from penstock.sources.fetched import FetchedFiles, KeptInFolder
from penstock.sources.starts import StartLog
from penstock.state.kept_slots import SlotCache
from penstock.streams.graph import COMMANDS, Graph, ProcessNode
from penstock.streams.job_description import JobDescription
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.memory_entries import MemoryStates, Stored
from penstock.testing.memory_sinks import MemorySink, MemoryTask, Written

PATIENCE_S = 60


@dataclass
class _Sink(MemorySink):
    """A memory sink that also keeps what tasks have written before they finish."""

    begun: list[MemoryTask] = field(default_factory=list)

    def task(self, context: TaskContext, record_type: RecordType) -> MemoryTask:
        self.begun.append(one := super().task(context, record_type))
        return one

    def written(self, record_type: RecordType, number: int) -> Written:
        begun = [one for one in self.begun if one.context.batch_id == number]
        return Written(record_type, [pair for one in begun for pair in list(one.batches)])


class _Coordinator(Coordinator):
    """A coordinator that also ends an interval when the test asks; the engines continue with the next one."""

    _hastens = False

    def begin(self, number: int) -> None:
        self._hastens = False
        super().begin(number)

    def hasten(self) -> None:
        self._hastens = True
        self._look_again()

    def _is_over_time(self, session: Any) -> bool:
        return self._hastens or super()._is_over_time(session)


def with_own_functions(plan: JobPlan) -> JobPlan:
    """Return the plan with copies of its steps' functions."""
    nodes = {
        name: dataclasses.replace(node, function=copy.deepcopy(node.function))
        if isinstance(node, ProcessNode)
        else node
        for name, node in plan.graph.nodes.items()
    }
    return dataclasses.replace(plan, graph=Graph(nodes))


class LiveRunner:
    """A job in real time. `states` holds what was committed.

    An interval ends `interval_s` after its first work, or once everything that was sent is read. Its engines
    continue with the next one, or stop with it if `ends_sessions`.
    """

    def __init__(
        self,
        job: JobDescription,
        folder: Path,
        parallelism: int = 1,
        interval_s: float = 600,
        *,
        drains: bool = False,
        ends: bool = False,
        ends_sessions: bool = False,
        waiting_bytes: int = 32 << 20,
    ) -> None:
        job.check()
        self.job = job
        self.plan = JobPlan(
            job.graph,
            job.key_groups,
            frozenset(),
            frozenset(),
            strict=False,
            parallelism=parallelism,
            in_real_time=True,
            waiting_bytes=waiting_bytes,
        )
        self.plans: list[JobPlan] = []
        self.change_plan()
        nodes = job.graph.sources()
        self.logs = {node.name: MemoryLog() for node in nodes}
        self.logs[COMMANDS] = MemoryLog()
        self.states: dict[tuple[str, int], Stored] = {}
        self.caches = [SlotCache() for _ in range(parallelism)]
        self.number = 0
        self.folder = folder
        self.files = IntervalFiles(folder, 100)
        self.interval_s = interval_s
        self.drains = drains
        self.ends = ends
        self.ends_sessions = ends_sessions
        self.sinks = self._sinks()
        self._attempts = itertools.count()
        self.records: dict[str, int] = {}
        self.coordinator: _Coordinator | None = None
        self.confirm: Callable[[], None] = lambda: None

    def send(self, stream: str, *records: Mapping[str, Any] | bytes) -> None:
        """Append records to a stream."""
        self.logs[stream].append([r if isinstance(r, bytes) else json.dumps(r).encode() for r in records])

    def sources(self) -> list[BoundSource]:
        found = [
            BoundSource(
                node, self.logs[node.name], StreamReader(self.plan, node, format_of("json", node.record_type))
            )
            for node in self.job.graph.sources()
        ]
        fetched = FetchedFiles(KeptInFolder(str(self.folder / "fetched")), 1 << 20, AllowedPlaces.of((), ()))
        found.append(
            BoundSource(COMMAND_NODE, self.logs[COMMANDS], CommandReader(self.plan, "json", 1 << 20, fetched))
        )
        found.append(BoundSource(START_NODE, StartLog(ends=self.ends), StartReader(self.plan)))
        return found

    def __enter__(self) -> Self:
        self._sources = self.sources()
        logs = {one.node.name: one.log for one in self._sources}
        controls = frozenset(one.node.name for one in self._sources if one.node.is_control)
        begins = {name: log.encode(log.beginning()) for name, log in logs.items()}
        self.coordinator = _Coordinator(
            CoordinatedStreams(logs, controls, frozenset(), begins),
            self.files,
            CheckpointLinks(lambda: None, lambda: self.confirm()),
            tasks=self.plan.parallelism,
            drains=self.drains,
            interval_s=self.interval_s,
            host="127.0.0.1",
        )
        self.coordinator.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.coordinator is not None
        self.coordinator.__exit__(*error)

    def change_plan(self, **changes: Any) -> None:
        """Change fields of the plan, before the first interval.

        Each task gets its own functions, as in Spark's workers; here tasks are threads of one process.
        """
        self.plan = dataclasses.replace(self.plan, **changes)
        self.plans = [with_own_functions(self.plan) for _ in range(self.plan.parallelism)]

    def run(self, during: Callable[[], None] = lambda: None, *, commits: bool = True) -> BatchOutcome:
        """Run one interval, and call a function while it runs. With `commits=False` Spark loses the tasks'
        work.
        """
        assert self.coordinator is not None
        self.coordinator.begin(self.number)
        address = self.coordinator.address
        jobs = [
            JobInRealTime(plan, tuple(self._sources), Writer(self.plan, self.sinks, "lineage"), address, 0)
            for plan in self.plans
        ]
        attempt = next(self._attempts)
        states = {name: dict(stored) for name, stored in self.states.items()}
        reports: list[tuple[str, str, int, int, bytes]] = []
        errors: list[Exception] = []

        def run(number: int) -> None:
            try:
                slot = slot_keys(self.plan.parallelism)[number]
                made = run_interval(
                    jobs[number].coordinator,
                    self.number,
                    number,
                    attempt,
                    MemoryStates(states, slot),
                    self.plan.slot_of[slot],
                    partial(start_engine, jobs[number], cache=self.caches[number]),
                )
                for batch in made:
                    reports.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            except Exception as e:  # the test checks it
                errors.append(e)

        threads = self._threads = [
            threading.Thread(target=run, args=(number,)) for number in range(self.plan.parallelism)
        ]
        for thread in threads:
            thread.start()
        during()
        self.await_until(lambda: self._has_read_all() or not all(thread.is_alive() for thread in threads))
        if self.ends_sessions:
            self.coordinator.finish()
        else:
            self.coordinator.hasten()
        await_true(lambda: self._have_ended(threads, errors), "a task does not end")
        if errors:
            raise ExceptionGroup("tasks failed", errors)
        written = {
            name: Written(kind, [pair for one in self._finished(sink) for pair in one.batches])
            for name, (sink, kind, _) in self.sinks.items()
            if self._finished(sink)
        }
        outcome = BatchOutcome(self.number, written, sorted(reports), self.records, list(self.sinks))
        self.after = states
        if commits:
            self.states = states
            self.number += 1
            self.records = outcome.records_so_far
        return outcome

    def _have_ended(self, threads: Sequence[threading.Thread], errors: Sequence[Exception]) -> bool:
        """Return whether the tasks have ended. When one fails before all have connected, Spark runs the interval
        again, so that the others do not wait for it.
        """
        assert self.coordinator is not None
        if not any(thread.is_alive() for thread in threads):
            return True
        if errors:
            self.coordinator.begin(self.number)
        return False

    def await_written(self, sink: str, count: int) -> None:
        """Wait until the running interval has written a number of records to a sink."""
        self.await_until(lambda: len(self.emitted(sink)) >= count)

    def await_read(self) -> None:
        """Wait until the running interval has read all that was sent."""
        self.await_until(self._has_read_all)

    def emitted(self, sink: str) -> list[Any]:
        """Return what the running interval has written to a sink."""
        found, record_type, _ = self.sinks[sink]
        return found.written(record_type, self.number).records

    def lose_task(self) -> None:
        """Connect as a task that Spark has restarted, once all tasks of the interval are connected."""
        assert self.coordinator is not None
        self.await_until(self._is_attended)
        place = self.coordinator.address
        with connect((place.host, place.port)) as one:
            send(one, Attend(place.secret, self.number, 0))
            self.await_end()

    def _is_attended(self) -> bool:
        session = self.coordinator and self.coordinator._session
        return session is not None and session.interval == self.number and session.has_all_tasks

    def await_end(self) -> None:
        """Wait until the tasks of the running interval have ended."""
        self.await_until(lambda: not any(thread.is_alive() for thread in self._threads))

    def _has_read_all(self) -> bool:
        return all(log.read_end == len(log.records) for log in self.logs.values())

    @staticmethod
    def await_until(condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, "it does not happen"
            time.sleep(0.002)

    def forget(self) -> None:
        """Continue in new workers."""
        self.caches = [SlotCache() for _ in self.caches]

    def _finished(self, sink: _Sink) -> list[MemoryTask]:
        """Return what the last attempt of the interval has written to a sink, in order."""
        found = {one.context.partition: one for one in sink.finished if one.context.batch_id == self.number}
        return [found[partition] for partition in sorted(found)]

    def _sinks(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            node.name: (
                _Sink(),
                node.record_type,
                self.plan.sink_schema(node),
            )
            for node in self.job.graph.sinks()
        }
        found[DEAD_LETTERS] = (_Sink(), DEAD_LETTER_TYPE, DEAD_LETTER_TYPE.schema)
        return found
