"""Source checks: a source is opened again, read in parts, and given bad records."""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from penstock.records.schemas import record_type
from penstock.records.types import RecordType, python_values
from penstock.sources.base import ReplayableLog, SourceChunk
from penstock.testing.connectors.conformance import Conformance, Refuted, rejects_within, run_checks
from penstock.testing.connectors.silent_server import silent_server

__all__ = ["SOURCE_CHECKS", "SourcePromise", "SourceUnderTest", "check_source"]

SourcePromise = Literal["each record once", "at least once"]

SOURCE_CHECKS: Final = (
    "replay",
    "while closed",
    "duplicates",
    "order",
    "partitions",
    "bad record",
    "credentials",
    "slow server",
)
"""The names of the checks, in the order of the table."""

_EXCUSABLE: Final = ("while closed", "bad record", "credentials", "slow server")
_RECORDS: Final = record_type("id BIGINT NOT NULL")
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class SourceUnderTest:
    """A source, and how to give it records. Each is JSON in bytes, `{"id": 7}`.

    Args:
        system: the name in the table.
        promise: what the source claims.
        open: opens the source as a run of the job does, always with the same checkpoint, and before the first record
            comes; it ends with the block.
        put: gives records to the outside system, and returns when it has them.
        bad: a record that is not one.
        with_wrong_login: opens the source with a login that the system refuses.
        secret: the wrong secret, which no message may show.
        at_port: opens the source for a server at this port of 127.0.0.1, which takes connections and never answers.
        limit_s: the longest that the source may take to find records or to give up, in seconds.
        without: the checks that do not apply, of "while closed", "bad record", "credentials" and "slow server", with
            the reason.

    """

    system: str
    promise: SourcePromise
    open: Callable[[], AbstractContextManager[ReplayableLog[Any]]]
    put: Callable[[Sequence[bytes]], None]
    bad: bytes = b'{"id": '
    with_wrong_login: Callable[[], AbstractContextManager[ReplayableLog[Any]]] | None = None
    secret: str = ""
    at_port: Callable[[int], AbstractContextManager[ReplayableLog[Any]]] | None = None
    limit_s: float = 20.0
    without: Mapping[str, str] = field(default_factory=dict)
    record_type: RecordType = _RECORDS


@dataclass(frozen=True)
class _Found:
    """A record that was read: its partition, its offset, and its bytes."""

    partition: str
    offset: int
    raw: bytes


def check_source(source: SourceUnderTest) -> Conformance:
    """Try everything that a source must withstand, in some seconds. The system must have no records before."""
    trial = _Trial(source)
    checks: dict[str, Callable[[], str | None]] = {
        "replay": trial.replay,
        "while closed": trial.while_closed,
        "duplicates": trial.duplicates,
        "order": trial.order,
        "partitions": trial.partitions,
        "bad record": trial.bad_record,
        "credentials": trial.wrong_login,
        "slow server": trial.slow_server,
    }
    return Conformance(
        source.system, "source", source.promise, run_checks(checks, source.without, _EXCUSABLE)
    )


class _Trial:
    """The checks of a source, one after the other. Each begins where the one before ended."""

    def __init__(self, source: SourceUnderTest) -> None:
        self._case: Final = source
        self._offset: str | None = None
        self._next = 0
        # The contents of all records so far. At least once means that those of earlier checks may come again.
        self._known: set[bytes] = set()

    def replay(self) -> None:
        """The same positions give the same bytes, after the source was opened again and has got more records."""
        first, second = self._records(30), self._records(20)
        with self._case.open() as log:
            start = log.beginning()
            if log.beginning() != start:
                raise Refuted("beginning() is another position each time.")
            self._case.put(first)
            end = self._grow(log, start, first)
            begin, offset = _encode(log, start), _encode(log, end)
            before = self._read(log, start, end)
        self._check(before, first, "from the beginning")
        with self._case.open() as log:
            self._case.put(second)
            start, end = log.decode(json.loads(begin)), log.decode(json.loads(offset))
            newest = self._grow(log, end, second)
            if self._read(log, start, end) != before:
                raise Refuted("the same positions gave other records, or in another order, after a restart.")
            self._check(self._read(log, end, newest), second, "after a restart")
            self._offset = _encode(log, newest)

    def while_closed(self) -> None:
        """What comes while no run of the job is there is read by the next one."""
        records = self._records(10)
        self._case.put(records)
        self._check(self._take(records), records, "which came while the source was closed")

    def duplicates(self) -> None:
        """Equal records are two records."""
        records = self._records(4)
        found = self._put_and_take([*records, *records])
        self._check(found, [*records, *records], "of which each came twice")

    def order(self) -> None:
        """In each partition, records are in the order in which they came."""
        records = self._records(50)
        place = {_content(raw): number for number, raw in enumerate(records)}
        by_partition: dict[str, list[int]] = {}
        for one in self._put_and_take(records):
            if _content(one.raw) in place:
                by_partition.setdefault(one.partition, []).append(place[_content(one.raw)])
        for partition, found in by_partition.items():
            first = list(dict.fromkeys(found))
            if first != sorted(first):
                raise Refuted(
                    f"the records of the partition {partition!r} are in another order than they came."
                )

    def partitions(self) -> None:
        """Tasks that share the work read the same as one that does all."""
        records = self._records(400)
        with self._case.open() as log:
            start = self._position(log)
            self._case.put(records)
            end = self._grow(log, start, records)
            one, four = self._read(log, start, end), self._read(log, start, end, parallelism=4)
            self._offset = _encode(log, end)
        if Counter(one) != Counter(four):
            raise Refuted("four tasks read other records than one task.")
        places = [(found.partition, found.offset) for found in one]
        if len(set(places)) != len(places):
            raise Refuted("two records have the same partition and offset.")
        last: dict[str, int] = {}
        for partition, offset in places:
            if offset <= last.get(partition, -1):
                raise Refuted(f"the offsets of the partition {partition!r} do not ascend.")
            last[partition] = offset
        self._check(one, records, "in parts")

    def bad_record(self) -> None:
        """A record that is not one is passed on as it is, for the dead letters, and its neighbours are read."""
        first, last = self._records(2), self._records(2)
        records = [*first, self._case.bad, *last]
        self._check(self._put_and_take(records), records, "of which one is bad")

    def wrong_login(self) -> None:
        """The system refuses the login: there is an error with a remedy."""
        case = self._case
        if case.with_wrong_login is None:
            raise Refuted("give `with_wrong_login`, or say in `without` that there is no login.")
        opened = case.with_wrong_login
        rejects_within(case.limit_s, lambda: _look(opened()), case.secret)

    def slow_server(self) -> str:
        """The server takes connections and does not answer: the source gives up in time, with an error."""
        case = self._case
        if case.at_port is None:
            raise Refuted("give `at_port`, or say in `without` that there is no server.")
        opened = case.at_port
        with silent_server() as port:
            rejects_within(case.limit_s, lambda: _look(opened(port)))
        return f"within {case.limit_s:g} s"

    def _records(self, count: int) -> list[bytes]:
        """Return records that no other check has."""
        self._next += count
        return [b'{"id": %d}' % number for number in range(self._next - count, self._next)]

    def _position(self, log: ReplayableLog[Any]) -> Any:
        return log.beginning() if self._offset is None else log.decode(json.loads(self._offset))

    def _put_and_take(self, records: Sequence[bytes]) -> list[_Found]:
        with self._case.open() as log:
            start = self._position(log)
            self._case.put(records)
            return self._up_to_now(log, start, records)

    def _take(self, records: Sequence[bytes]) -> list[_Found]:
        with self._case.open() as log:
            return self._up_to_now(log, self._position(log), records)

    def _up_to_now(self, log: ReplayableLog[Any], start: Any, records: Sequence[bytes]) -> list[_Found]:
        end = self._grow(log, start, records)
        self._offset = _encode(log, end)
        return self._read(log, start, end)

    def _grow(self, log: ReplayableLog[Any], start: Any, records: Sequence[bytes]) -> Any:
        """Wait until the log has all of these records after a position; return its end."""
        deadline = time.monotonic() + self._case.limit_s
        wanted = Counter(map(_content, records))
        self._known.update(wanted)
        while True:
            end = log.latest(start, limited=False)
            missing = wanted - Counter(_content(one.raw) for one in self._read(log, start, end))
            if not missing:
                return end
            if time.monotonic() > deadline:
                raise Refuted(
                    f"{missing.total()} of {len(records)} records were not there after {self._case.limit_s:g} s; one "
                    f"of them is {next(iter(missing))!r}."
                )
            time.sleep(_POLL_S)

    def _read(self, log: ReplayableLog[Any], start: Any, end: Any, *, parallelism: int = 1) -> list[_Found]:
        """Read the records between two positions, each split in a separate worker."""
        found: list[_Found] = []
        for split in log.splits(start, end, parallelism):
            worker: ReplayableLog[Any] = pickle.loads(pickle.dumps(log))  # it was pickled one line before
            for chunk in worker.read([split], self._case.record_type):
                found += _records_of(chunk)
        return found

    def _check(self, found: Iterable[_Found], wanted: Sequence[bytes], which: str) -> None:
        """Check that the records are there, and as often as the source promises."""
        counted, due = Counter(_content(one.raw) for one in found), Counter(map(_content, wanted))
        if missing := due - counted:
            raise Refuted(f"{missing.total()} of {len(wanted)} records, {which}, are missing.")
        may_repeat = self._known if self._case.promise == "at least once" else ()
        for raw in counted - due:
            if raw not in may_repeat:
                raise Refuted(f"{raw!r} is there too often, {which}.")


def _encode(log: ReplayableLog[Any], position: Any) -> str:
    return json.dumps(log.encode(position))


def _records_of(chunk: SourceChunk) -> list[_Found]:
    """Return the records of a chunk. Those that are decoded become JSON again."""
    offsets = chunk.offsets.to_pylist()
    if chunk.raw is not None:
        raw = [_plain(one) for one in chunk.raw.to_pylist()]
    elif chunk.batch is not None:
        columns = {name: python_values(chunk.batch.column(name)) for name in chunk.batch.schema.names}
        raw = [
            json.dumps(dict(zip(columns, values, strict=True))).encode()
            for values in zip(*columns.values(), strict=True)
        ]
    else:
        raw = []
    found = [_Found(chunk.partition, offset, one) for offset, one in zip(offsets, raw, strict=True)]
    return found + [_Found(bad.partition, bad.offset, _plain(bad.raw)) for bad in chunk.bad]


def _plain(raw: bytes) -> bytes:
    """Return a record without its line end."""
    return raw.rstrip(b"\r\n")


def _content(raw: bytes) -> bytes:
    """Return a record as it is compared with what was put: JSON without spaces, since a database writes its own."""
    try:
        return msgspec.json.encode(msgspec.json.decode(raw))
    except msgspec.DecodeError:
        return _plain(raw)


def _look(opened: AbstractContextManager[ReplayableLog[Any]]) -> None:
    with opened as log:
        log.latest(log.beginning(), limited=True)
