"""The engine of a slot: its readers, its rounds and its sinks, from one interval to the next.

A task of an interval starts it. It runs on while Spark commits the interval and starts the tasks of the next one.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from penstock.base.garbage import LastingObjects, collect_again
from penstock.engine.slot import Slot
from penstock.machine.limits import cores
from penstock.realtime.carried_state import CarriedStates, Desk
from penstock.realtime.exchange import Exchange
from penstock.realtime.inbox import Inbox, PeerLostError
from penstock.realtime.intake import Intake
from penstock.realtime.interval_meter import IntervalMeter
from penstock.realtime.messages import (
    Busy,
    CaughtUp,
    Commit,
    Done,
    End,
    Failed,
    FromCoordinator,
    Go,
    Hello,
    Launch,
    Outcome,
    Push,
    Put,
    StartData,
    TaskLog,
    connect,
    hang_up,
    receive,
    send,
)
from penstock.realtime.slot_rounds import RoundLinks, SlotRounds
from penstock.realtime.slot_turns import SlotTurns
from penstock.realtime.stream_feeds import (
    Arrivals,
    EndOfInterval,
    Feed,
    FeedLinks,
    FollowedTopics,
    PushedRanges,
    RepeatedReadings,
    pause_of,
)
from penstock.runtime.bound_source import BoundSource
from penstock.runtime.packed_rows import PackedRow
from penstock.runtime.plan import JobPlan
from penstock.runtime.writer import Writer, WriterTask
from penstock.sources.kafka_log import KafkaLog
from penstock.state.kept_slots import SlotCache

__all__ = ["CoordinatorAddress", "JobInRealTime", "SlotEngine"]

# Readers and the slot share the interpreter. By default one thread may keep the other waiting for 5 ms.
_SWITCH_S: Final = 0.0005
# A full garbage collection stops the engine for some tens of milliseconds.
_INTERVALS_PER_COLLECTION: Final = 100

_decoder: Final = msgspec.msgpack.Decoder(FromCoordinator)


@dataclass(frozen=True)
class CoordinatorAddress:
    """Where the coordinator listens, and the secret that tasks and engines know."""

    host: str
    port: int
    secret: str


@dataclass(frozen=True)
class JobInRealTime:
    """What a worker needs to run a slot. Interval 0 is micro-batch `first_batch` of the job."""

    plan: JobPlan
    sources: tuple[BoundSource, ...]
    writer: Writer
    coordinator: CoordinatorAddress
    first_batch: int


@dataclass(frozen=True)
class _Finished:
    """An interval to carry to Spark once it is durable."""

    number: int
    is_last: bool
    entries: list[Put]
    written: WriterTask


class SlotEngine:
    """The engine of one slot in one session of the coordinator. Tasks connect to `address`.

    Args:
        job: the job.
        task: the number of the slot.
        slot: its key groups.
        launch: the message with which the coordinator describes the session.
        first: the first interval, in Spark's numbering.
        attempt: a number that keeps the files of this engine apart from those of others.
        cache: the tables that the worker keeps of slots between sessions.

    """

    def __init__(
        self,
        job: JobInRealTime,
        task: int,
        slot: Slot,
        launch: Launch,
        first: int,
        attempt: int,
        cache: SlotCache,
    ) -> None:
        sys.setswitchinterval(_SWITCH_S)
        self._job: Final = job
        self._task: Final = task
        self._slot: Final = slot
        self._number = first
        self._version = launch.version
        self._attempt: Final = attempt
        self._cache: Final = cache
        self._intake: Final = Intake(job.plan.waiting_bytes)
        self._inbox: Final = Inbox(self._intake, first)
        self._pause_ms: Final = pause_of(job.plan.parallelism, cores())
        place = job.coordinator
        self._link: Final = connect((place.host, place.port))
        host = self._link.getsockname()[0]
        self._exchange: Final = Exchange(job.plan, task, self._inbox, host, place.secret)
        self._desk: Final = Desk(host, place.secret, self._inbox.fail)
        self.address: Final = self._desk.address
        self._states: Final = CarriedStates(self._desk)
        self._together: Final = EndOfInterval(len(job.sources), first)
        self._feeds: Final[dict[str, Feed]] = {}
        self._started: Final[set[str]] = set()
        self._reading_s = 0.0
        self._starting: Final = threading.Lock()
        self._is_last = False
        # Stores the changes of the last interval, whose output is finished only after that.
        self._storing: Iterator[None] = iter(())
        self._written: WriterTask | None = None
        self._finished: Final[queue.SimpleQueue[_Finished]] = queue.SimpleQueue()
        self._commits: Final[queue.SimpleQueue[bool]] = queue.SimpleQueue()
        send(self._link, Hello(place.secret, launch.session, task, self._exchange.address, self.address))

    def run(self) -> None:
        """Run until the coordinator ends the engine or is lost, or anything fails, which its task reports."""
        failure = None
        try:
            self._work()
        except PeerLostError as e:
            failure = Failed(str(e), is_cause=False)
        except BaseException:  # whatever it is, the task of the interval reports it
            failure = Failed(traceback.format_exc(), is_cause=True)
        self._close(failure)

    def _work(self) -> None:
        self._job.writer.connect()
        go = self._receive()
        assert isinstance(go, Go)
        self._exchange.connect(go.peers)
        rounds = self._rounds()
        turns = SlotTurns(rounds, self._inbox, is_alone=self._job.plan.parallelism == 1)
        self._make_feeds(go, turns)
        if go.history is not None:
            self._await_history(rounds)
        for source in self._job.sources:
            if source.node.is_control or go.history is None:
                self._start(source.node.name)
        self._is_last = go.log is not None
        listening = threading.Thread(target=self._guard, args=(self._listen,), daemon=True)
        listening.start()
        carrying = threading.Thread(target=self._guard, args=(self._carry,), daemon=True)
        carrying.start()
        is_last = self._run_interval(rounds, turns, go.log)
        lasting = LastingObjects(_INTERVALS_PER_COLLECTION)
        while not is_last:
            lasting.exempt()
            self._number += 1
            self._inbox.advance()
            is_last = self._run_interval(rounds, turns, None)
        carrying.join()
        # The engine fails with the error of the other thread.
        self._inbox.take()

    def _rounds(self) -> SlotRounds:
        plan, sources = self._job.plan, self._job.sources
        readers = [_sender(task, one) for task in range(plan.parallelism) for one in sources]
        return SlotRounds(
            plan,
            self._task,
            readers,
            self._inbox,
            self._intake,
            RoundLinks(
                self._exchange.send_emitted,
                self._exchange.end_level,
                lambda number: send(self._link, Busy(number)),
            ),
            self._cache,
        )

    def _make_feeds(self, go: Go, turns: SlotTurns) -> None:
        exchange = self._exchange
        links = FeedLinks(
            exchange.send_read, turns.run_few, exchange.end_read, self._inbox.fail, self._together
        )
        for source in self._job.sources:
            self._feeds[source.node.name] = Feed(
                source.reader, self._arrivals(source, go), _sender(self._task, source), links, self._number
            )

    def _arrivals(self, source: BoundSource, go: Go) -> Arrivals:
        name, log = source.node.name, source.log
        if go.log is not None:
            return RepeatedReadings(log, source.node, go.log.readings.get(name, ()))
        if isinstance(log, KafkaLog):
            until = None if go.until is None else go.until.get(name, {})
            history = (go.history or {}).get(name)
            gone = go.gone.get(name)
            starts = go.follows.get(name, {})
            return FollowedTopics(log, starts, history, until, self._intake, gone, self._pause_ms)
        return PushedRanges(log, source.node)

    def _await_history(self, rounds: SlotRounds) -> None:
        controls = [one for one in self._job.sources if one.node.is_control]
        rounds.await_history(
            (_sender(task, one) for task in range(self._job.plan.parallelism) for one in controls),
            lambda: send(self._link, CaughtUp()),
        )

    def _run_interval(self, rounds: SlotRounds, turns: SlotTurns, log: TaskLog | None) -> bool:
        """Run one interval, and return whether it is the last.

        By then all of its input is processed. Its changes are stored during the rounds of the next one.
        """
        job, number = self._job, self._number
        meter = IntervalMeter(job.writer, self._task)
        self._states.begin(number)
        wakes = number == 0 and job.plan.seed is not None
        rounds.open(number, self._states, self._slot, meter, wakes=wakes)
        written = WriterTask(
            job.writer, job.first_batch + number, self._task, self._attempt, meter, self._version
        )
        if job.writer.holds_locks:
            # A record may wait for the commit of the last interval, which waits for the changes that are stored here.
            rounds.finish(self._storing)
        try:
            if log is None:
                turns.live(self._storing, written.write)
            else:
                rounds.replay(log.rounds, written.write)
            # The next interval may write to these sinks at once, so this one's output must not wait for its records.
            written.finish_visible()
            is_last = self._is_last
            stored = rounds.cut(goes_on=not is_last)
        except BaseException:
            written.abort()
            raise
        taken = {name: feed.taken for name, feed in self._feeds.items()}
        done = TaskLog({name: readings for name, (readings, _) in taken.items()}, rounds.done)
        positions = {name: dict(found) for name, (_, found) in taken.items() if found is not None}
        self._written = written
        self._storing = self._store(number, stored, Done(done, positions), is_last=is_last)
        if is_last:
            rounds.finish(self._storing)
        self._measure(meter)
        return is_last

    def _store(
        self, number: int, stored: Iterator[PackedRow | None], done: Done, *, is_last: bool
    ) -> Iterator[None]:
        """Store the changes of an interval, in pieces, and report that to the coordinator."""
        written = self._written
        assert written is not None
        for row in stored:
            if row is None:
                written.finish_arrived(waits=False)
                yield
            else:
                written.write([row])
        written.finish_arrived(waits=True)
        if is_last:
            # Other engines may end as soon as the coordinator knows that all are done.
            self._exchange.finish()
        self._finished.put(_Finished(number, is_last, self._states.take_changes(number), written))
        self._written = None
        # Later messages of the coordinator are about the next interval.
        send(self._link, done)

    def _measure(self, meter: IntervalMeter) -> None:
        """End the meter of an interval."""
        work_s = sum(feed.work_s for feed in self._feeds.values())
        lags = {name: feed.lag for name, feed in self._feeds.items() if feed.lag is not None}
        meter.end(work_s - self._reading_s, lags)
        self._reading_s = work_s

    def _carry(self) -> None:
        """Finish each interval that is durable, and give it to its task."""
        while self._commits.get():
            finished = self._finished.get()
            try:
                reports = finished.written.finish()
            except BaseException:
                finished.written.abort()
                raise
            self._desk.deliver(finished.number, finished.entries, Outcome(_as_bytes(reports)))
            if finished.is_last:
                return

    def _start(self, stream: str) -> None:
        """Start a feed, unless it has started. Both the engine and its listener to the coordinator may call this."""
        with self._starting:
            if stream not in self._started:
                self._started.add(stream)
                self._feeds[stream].start()

    def _receive(self) -> FromCoordinator:
        message: FromCoordinator = receive(self._link, _decoder)
        return message

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a thread of the engine; if it fails, so does the engine."""
        try:
            work()
        except BaseException as e:  # whatever it is
            self._inbox.fail(e)
            self._commits.put(False)

    def _listen(self) -> None:
        """Handle a message of the coordinator."""
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
                    # The engine begins the next interval only when its feeds have been cut.
                    self._version = message.version
                    self._end(is_last=message.is_last)
                elif isinstance(message, Commit):
                    self._commits.put(True)
        except (OSError, msgspec.DecodeError) as e:
            raise PeerLostError(f"the coordinator is gone ({e})") from e

    def _end(self, *, is_last: bool) -> None:
        self._is_last |= is_last
        for name, feed in self._feeds.items():
            if not is_last:
                feed.cut()
                continue
            feed.arrivals.end()
            # If the interval ends before data could be read, the slots wait for the end of the feed, too.
            self._start(name)

    def _close(self, failure: Failed | None) -> None:
        """End the threads and close the connections."""
        self._inbox.fail(PeerLostError("the engine has ended"))
        self._commits.put(False)
        self._desk.close(failure)
        self._together.close()
        self._end(is_last=True)
        hang_up(self._link)
        self._exchange.close()
        for stream in sorted(self._started):
            self._feeds[stream].join()
        if self._written is not None:
            self._written.abort()
        while not self._finished.empty():
            self._finished.get().written.abort()
        collect_again()


def _as_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _sender(task: int, source: BoundSource) -> str:
    return f"{task}/{source.node.name}"
