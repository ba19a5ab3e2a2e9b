"""Kinesis receiver: journals the records of the shards of a stream, each block with the places in the shards.

Each shard is read in order, by one request at a time, and children after their parents have ended. So records of one
partition key are in the journal in their order, also when shards are split or merged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from penstock.bindings.amazon_types import KinesisBinding
from penstock.errors import BindingError, RecordsLostError
from penstock.kinesis.aggregated_records import records_in
from penstock.kinesis.kinesis_stream import KinesisStream, ShardRead
from penstock.kinesis.shard_places import (
    Shard,
    ShardPlace,
    StreamPlaces,
    discovered,
    expired,
    readable,
)
from penstock.sources.journal import JournalWriter, journal_begin
from penstock.sources.receiver import IDLE_S, Receiver

__all__ = ["KinesisReceiver"]

_log: Final = logging.getLogger("penstock.sources")
_READS_AT_ONCE: Final = 8
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
_LOOK_S: Final = 60.0
# While nothing comes, the places are noted this often: retention is counted from them.
_NOTED_EVERY_MS: Final = 600_000


@dataclass
class _OpenShard:
    """A shard that is being read: where the next request starts, when it is due, and the pause if it is refused."""

    shard: Shard
    iterator: str | None = None
    due_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    at_tip: bool = False


@dataclass
class _Reading:
    """The shards that are being read, and the requests that are under way."""

    open: dict[str, _OpenShard] = field(default_factory=dict)
    under_way: dict[Future[ShardRead], _OpenShard] = field(default_factory=dict)

    def due(self, now_s: float) -> list[_OpenShard]:
        """Return the shards to ask now, those first that have waited longest."""
        busy = {one.shard.name for one in self.under_way.values()}
        found = [one for name, one in self.open.items() if name not in busy and one.due_s <= now_s]
        return sorted(found, key=lambda one: one.due_s)[: _READS_AT_ONCE - len(self.under_way)]

    def wait_s(self, now_s: float) -> float:
        """Return how long no other shard is due."""
        busy = {one.shard.name for one in self.under_way.values()}
        waits = [one.due_s - now_s for name, one in self.open.items() if name not in busy]
        return max(0.0, min([IDLE_S, *waits]))


class KinesisReceiver(Receiver[KinesisStream]):
    """A receiver of the records of a stream.

    The journal holds the place in each shard with the records up to it, so it has each record once. A bounded run ends
    when each shard has said once that it has nothing more.
    """

    def __init__(
        self, binding: KinesisBinding, folder: Path, journal: JournalWriter, *, bounded: bool = False
    ) -> None:
        super().__init__(binding.stream, journal, bounded=bounded)
        self._binding: Final = binding
        self._folder: Final = folder
        self._places = _last_places(journal.notes())
        self._noted_ms = 0
        # These begin at the start itself; a restart after a crash or a lost connection begins in its second.
        self._first_iterators: dict[str, str] = {}

    def _connect(self) -> KinesisStream:
        stream = KinesisStream(self._binding)
        places = self._places
        if places is not None and places.name != self._binding.name:
            raise BindingError(
                f"Stream {self._stream!r}: the checkpoint has read the Kinesis stream {places.name!r}, and would "
                f"continue in {self._binding.name!r}. Correct the URI, or give the stream another name in the job."
            )
        self._require_same(stream)
        # From now on the job counts as started, and nothing that comes may be missed.
        self._begin(stream)
        return stream

    def _require_same(self, stream: KinesisStream) -> None:
        """Raise BindingError if a stream is not the one that was read before: its places say nothing of this one."""
        if self._places is not None and self._places.created_ms != stream.created_ms:
            raise BindingError(
                f"Stream {self._stream!r}: {self._binding.where} is not the stream that the checkpoint has read: it "
                "was deleted and created again. Start with a new checkpoint, or give the stream another name in the "
                "job."
            )

    def _look(self, stream: KinesisStream) -> bool:
        """Look at the shards again; return what `_discover` returns."""
        stream.look()
        self._require_same(stream)
        return self._discover(stream)

    def _receive(self, connection: KinesisStream) -> None:
        self._discover(connection)
        reading, looked_s = _Reading(), time.monotonic()
        pool = ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix=f"kinesis-{self._stream}")
        try:
            while not self._stopping.is_set():
                if time.monotonic() > looked_s + _LOOK_S:
                    looked_s = time.monotonic()
                    if self._look(connection):
                        # Requests under way start at places that the stream no longer uses.
                        reading = _Reading()
                self._open(connection, reading)
                if self._bounded and self._is_at_end(reading):
                    return
                if not self._is_ahead():
                    self._ask(connection, reading, pool)
                self._take(connection, reading)
        finally:
            # Records that are still under way are read again from the place in the journal.
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, stream: KinesisStream) -> None:
        """Keep the start, so that records that come before the first is journaled are not skipped."""
        if self._places is not None:
            return
        start, since_ms = self._binding.start, 0
        if start != "earliest":
            since_ms = stream.now_ms if start == "latest" else min(start, stream.now_ms)
        first = ShardPlace(since_ms=since_ms, reached_ms=stream.now_ms)
        shards = discovered(stream.shards, {}, first)
        self._keep(StreamPlaces(self._binding.name, stream.created_ms, shards), [])
        if start == "latest":
            with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
                self._first_iterators = dict(zip(shards, pool.map(stream.newest, shards), strict=True))

    def _discover(self, stream: KinesisStream) -> bool:
        """Find the shards that are new. Return whether some records may be lost, and are passed over.

        Raises RecordsLostError if the binding says that they must not be.
        """
        places = self._known().shards
        found = discovered(stream.shards, places)
        lost = expired(stream.shards, found, stream.now_ms - stream.retention_ms)
        if lost and self._binding.missing != "skip":
            raise RecordsLostError(_lost_text(self._binding, lost, stream.retention_ms))
        listed = {shard.name for shard in stream.shards}
        for name in lost:
            _log.warning(
                "Stream %r: Kinesis may have deleted records of %s before they were read; the stream continues at the "
                "oldest that is left.",
                self._stream,
                name,
                extra={"stream": self._stream},
            )
            found[name] = ShardPlace(reached_ms=stream.now_ms, ended=name not in listed)
        if found != places:
            self._keep(msgspec.structs.replace(self._known(), shards=found), [])
        return bool(lost)

    def _known(self) -> StreamPlaces:
        assert self._places is not None
        return self._places

    def _open(self, stream: KinesisStream, reading: _Reading) -> None:
        """Begin with the shards that may be read now."""
        for shard in readable(stream.shards, self._known().shards):
            reading.open.setdefault(shard.name, _OpenShard(shard))

    @staticmethod
    def _is_at_end(reading: _Reading) -> bool:
        return not reading.under_way and all(
            one.at_tip and not one.shard.is_closed for one in reading.open.values()
        )

    def _is_ahead(self) -> bool:
        """Return whether the job has so much to read that no more is asked for."""
        begin = journal_begin(self._folder.iterdir()) or 0
        return self._journal.position - begin > self._binding.max_journal_bytes

    def _ask(self, stream: KinesisStream, reading: _Reading, pool: ThreadPoolExecutor) -> None:
        for one in reading.due(time.monotonic()):
            reading.under_way[pool.submit(self._read, stream, one)] = one

    def _read(self, stream: KinesisStream, one: _OpenShard) -> ShardRead:
        """Continue to read a shard. Runs in a separate thread."""
        name = one.shard.name
        if one.iterator is None:
            first = self._first_iterators.pop(name, None)
            one.iterator = first or stream.iterator(name, self._known().shards[name])
        return stream.read(one.iterator)

    def _take(self, stream: KinesisStream, reading: _Reading) -> None:
        """Journal the records that have come."""
        now_s = time.monotonic()
        if not reading.under_way:
            self._stopping.wait(reading.wait_s(now_s) or IDLE_S)
            return
        done, _ = wait(reading.under_way, reading.wait_s(now_s) or IDLE_S, FIRST_COMPLETED)
        records: list[bytes] = []
        places = dict(self._known().shards)
        has_ended = False
        reads = [(reading.under_way.pop(future), future.result()) for future in done]
        for one, read in reads:
            for _, data in read.records:
                records += records_in(data, one.shard)
            self._go_on(one, read)
            if not (read.is_refused or read.is_stale):
                places[one.shard.name] = _place_after(places[one.shard.name], read)
                has_ended |= read.iterator is None
        for one, _ in reads:
            if places[one.shard.name].ended:
                del reading.open[one.shard.name]
        self._note(places, records, at_once=has_ended)
        if has_ended:
            self._look(stream)

    def _go_on(self, one: _OpenShard, read: ShardRead) -> None:
        """Decide when a shard is asked again."""
        now_s = time.monotonic()
        one.iterator = read.iterator
        one.at_tip |= read.at_tip
        if read.is_refused:
            one.due_s = now_s + one.pause_s
            one.pause_s = min(2 * one.pause_s, _LONGEST_PAUSE_S)
            return
        one.pause_s = _FIRST_PAUSE_S
        one.due_s = now_s + (self._binding.poll_ms / 1000 if read.at_tip else 0.0)

    def _note(self, places: dict[str, ShardPlace], records: list[bytes], *, at_once: bool) -> None:
        """Make records durable, with the places after them. Without records the places are noted now and then."""
        stream = msgspec.structs.replace(self._known(), shards=places)
        reached_ms = max(place.reached_ms for place in places.values())
        moved = any(place.after != self._known().shards[name].after for name, place in places.items())
        if records or at_once or moved or reached_ms > self._noted_ms + _NOTED_EVERY_MS:
            self._keep(stream, records)
        self._places = stream

    def _keep(self, stream: StreamPlaces, records: list[bytes]) -> None:
        self._journal.append(records, msgspec.json.encode(stream))
        self._places = stream
        self._noted_ms = max((place.reached_ms for place in stream.shards.values()), default=0)


def _place_after(place: ShardPlace, read: ShardRead) -> ShardPlace:
    return ShardPlace(
        read.records[-1][0] if read.records else place.after,
        place.since_ms,
        max(place.reached_ms, read.reached_ms),
        ended=read.iterator is None,
    )


def _last_places(notes: Iterable[bytes]) -> StreamPlaces | None:
    note = next(iter(notes), None)
    return None if note is None else msgspec.json.decode(note, type=StreamPlaces)


def _lost_text(binding: KinesisBinding, lost: dict[str, int], retention_ms: int) -> str:
    name = min(lost, key=lambda shard: (lost[shard], shard))
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(lost[name] / 1000))
    return (
        f"Stream {binding.stream!r}: {binding.where} keeps records for {retention_ms // 3_600_000} h, and the job has "
        f"read {name} only up to what came at {since}, so records that it has not read may be deleted. To continue at "
        "the oldest that is left, add missing=skip to the URI and start the job again. To keep records for longer, "
        "raise the retention of the stream."
    )
