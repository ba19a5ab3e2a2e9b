"""The task of an interval: its readers, its slot and its sinks, from the coordinator's first message to its last."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from penstock.engine.slot import Slot
from penstock.realtime.exchange import Exchange
from penstock.realtime.inbox import Inbox, PeerLostError
from penstock.realtime.messages import (
    Busy,
    CaughtUp,
    Commit,
    Done,
    End,
    FromCoordinator,
    Go,
    Hello,
    Push,
    StartData,
    TaskLog,
    connect,
    receive,
    send,
)
from penstock.realtime.slot_rounds import SlotRounds
from penstock.realtime.stream_feeds import (
    Arrivals,
    Feed,
    FollowedTopic,
    PushedRanges,
    RepeatedReadings,
)
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.level import StoredStates
from penstock.runtime.packed_rows import PackedRow
from penstock.runtime.plan import JobPlan
from penstock.runtime.writer import Writer
from penstock.sources.kafka_log import KafkaLog
from penstock.state.kept_slots import SlotCache, kept_slots

__all__ = ["CoordinatorAddress", "IntervalTask"]

# What readers may have read before the slot has processed it.
_WAITING_BYTES: Final = 32 << 20
# Readers and the slot share the interpreter. By default one waits 5 ms for the other.
_SWITCH_S: Final = 0.0005
_CAUSE_FIRST_S: Final = 0.5

_decoder: Final = msgspec.msgpack.Decoder(FromCoordinator)


@dataclass(frozen=True)
class CoordinatorAddress:
    """Where the coordinator listens, and the secret that its tasks know."""

    host: str
    port: int
    secret: str


@dataclass(frozen=True)
class IntervalTask:
    """What a worker needs to run the task of an interval. Interval 0 is micro-batch `first_batch` of the job."""

    plan: JobPlan
    sources: tuple[BoundSource, ...]
    writer: Writer
    coordinator: CoordinatorAddress
    first_batch: int

    def run(
        self,
        number: int,
        task: int,
        attempt: int,
        states: StoredStates | None,
        slot: Slot,
        cache: SlotCache = kept_slots,
    ) -> Iterator[pa.RecordBatch]:
        """Run the task of an interval, in Spark's numbering, and yield its reports.

        `cache` has what the worker keeps of slots between intervals.
        """
        running = _Running(self, number, task, cache)
        try:
            rows = running.rows(states, slot, wakes=number == 0 and self.plan.seed is not None)
            yield from self.writer.batches(rows, self.first_batch + number, task, attempt)
        except PeerLostError:
            # Spark shows the error that comes first, and that of the other task is the cause.
            time.sleep(_CAUSE_FIRST_S)
            raise
        finally:
            running.close()


class _Running:
    """The task of one interval while it runs."""

    def __init__(self, job: IntervalTask, number: int, task: int, cache: SlotCache) -> None:
        sys.setswitchinterval(_SWITCH_S)
        self._job: Final = job
        self._task: Final = task
        self._cache: Final = cache
        self._inbox: Final = Inbox(_WAITING_BYTES)
        place = job.coordinator
        self._link: Final = connect((place.host, place.port))
        host = self._link.getsockname()[0]
        self._exchange: Final = Exchange(job.plan, task, self._inbox, host, place.secret)
        self._feeds: dict[str, Feed] = {}
        self._started: set[str] = set()
        self._starting: Final = threading.Lock()
        self._committed: Final = threading.Event()
        send(self._link, Hello(place.secret, number, task, self._exchange.address))

    def rows(self, states: StoredStates | None, slot: Slot, *, wakes: bool) -> Iterator[PackedRow]:
        """Yield the rows for sinks and the driver. Ends when what the tasks did is on disk."""
        plan, sources = self._job.plan, self._job.sources
        go = self._receive()
        assert isinstance(go, Go)
        self._exchange.connect(go.peers)
        readers = [_sender(task, one) for task in range(plan.parallelism) for one in sources]
        exchange = self._exchange
        rounds = SlotRounds(
            plan,
            self._task,
            readers,
            self._inbox,
            exchange.send_emitted,
            lambda level: exchange.end_level(f"slot/{self._task}", level),
            lambda: send(self._link, Busy()),
            self._cache,
        )
        for source in sources:
            self._feeds[source.node.name] = Feed(
                source.reader,
                self._arrivals(source, go),
                _sender(self._task, source),
                exchange.send_read,
                exchange.end_read,
                self._inbox.fail,
            )
        if go.history is not None:
            controls = [one for one in sources if one.node.is_control]
            rounds.await_history(
                (_sender(task, one) for task in range(plan.parallelism) for one in controls),
                lambda: send(self._link, CaughtUp()),
            )
        for source in sources:
            if source.node.is_control or go.history is None:
                self._start(source.node.name)
        threading.Thread(target=self._listen, name="coordinator", daemon=True).start()
        if states is not None:
            rounds.open(states, slot, wakes=wakes)
        yield from rounds.live() if go.log is None else rounds.replay(go.log.rounds)
        yield from rounds.store()
        self._join()
        exchange.finish()
        log = TaskLog({name: feed.readings for name, feed in self._feeds.items()}, rounds.done)
        send(self._link, Done(log, self._positions()))
        self._committed.wait()
        self._inbox.take(0)

    def _arrivals(self, source: BoundSource, go: Go) -> Arrivals:
        name, log = source.node.name, source.log
        if go.log is not None:
            return RepeatedReadings(log, source.node, go.log.readings.get(name, ()))
        if isinstance(log, KafkaLog):
            until = None if go.until is None else go.until.get(name, {})
            return FollowedTopic(log, go.follows.get(name, {}), (go.history or {}).get(name), until)
        return PushedRanges(log, source.node)

    def _start(self, stream: str) -> None:
        """Start a feed, unless it has started. The task and what it hears from the coordinator are two threads."""
        with self._starting:
            if stream not in self._started:
                self._started.add(stream)
                self._feeds[stream].start()

    def _join(self) -> None:
        for stream in sorted(self._started):
            self._feeds[stream].join()

    def _positions(self) -> dict[str, dict[int, int]]:
        found = {name: feed.arrivals for name, feed in self._feeds.items()}
        return {
            name: arrivals.positions
            for name, arrivals in found.items()
            if isinstance(arrivals, FollowedTopic)
        }

    def _receive(self) -> FromCoordinator:
        message: FromCoordinator = receive(self._link, _decoder)
        return message

    def _listen(self) -> None:
        """Carry out what the coordinator says."""
        try:
            while True:
                message = self._receive()
                if isinstance(message, Push):
                    arrivals = self._feeds[message.stream].arrivals
                    assert isinstance(arrivals, PushedRanges)
                    arrivals.push(message.reading)
                elif isinstance(message, StartData):
                    for name in self._feeds:
                        self._start(name)
                elif isinstance(message, End):
                    self._end_feeds()
                elif isinstance(message, Commit):
                    self._committed.set()
                    return
        except (OSError, msgspec.DecodeError) as e:
            self._inbox.fail(PeerLostError(f"the coordinator of the interval is gone ({e})"))
            self._committed.set()

    def _end_feeds(self) -> None:
        for name, feed in self._feeds.items():
            feed.arrivals.end()
            # If the interval ends before data could be read, the slots wait for the end of the feed, too.
            self._start(name)

    def close(self) -> None:
        """End the threads and close the connections."""
        self._inbox.fail(PeerLostError("the interval is over"))
        self._end_feeds()
        self._link.close()
        self._exchange.close()
        self._join()


def _sender(task: int, source: BoundSource) -> str:
    return f"{task}/{source.node.name}"
