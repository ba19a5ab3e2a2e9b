"""The conformance kit detects a connector's errors, and reports them."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from appending_sink import AppendingSink

from penstock.errors import ExternalSystemError
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.testing.connectors import (
    SINK_CHECKS,
    NonconformingError,
    SinkUnderTest,
    SourceUnderTest,
    StoredRecord,
    check_sink,
    check_source,
)
from penstock.testing.connectors.conformance import Refuted, rejects_within
from penstock.testing.connectors.silent_server import silent_server
from penstock.testing.connectors.source_checks import SourcePromise

NO_LOGIN = {"credentials": "no login", "slow server": "no server"}


def appending(file: Path) -> SinkUnderTest:
    """Return a sink that declares too strong a guarantee."""

    def stored() -> list[StoredRecord]:
        rows = [line.split(" ", 1) for line in file.read_text().splitlines()] if file.exists() else []
        return [StoredRecord(int(number), value) for number, value in rows]

    return SinkUnderTest("a file", "exactly once", lambda: AppendingSink(file), stored, without=NO_LOGIN)


def test_a_sink_that_writes_twice_is_found(tmp_path: Path) -> None:
    """The report names the failed checks, and the finding of each."""
    found = check_sink(appending(tmp_path / "lines"))
    assert [one.check for one in found.outcomes] == list(SINK_CHECKS)
    failed = {one.check for one in found.outcomes if one.verdict == "fail"}
    assert failed == {"replay", "kill", "duplicates", "bad record"}
    with pytest.raises(
        NonconformingError, match=r"'a file', which promises exactly once, fails 4 of 8"
    ) as raised:
        found.require()
    told = str(raised.value)
    assert "- replay: the record 8 is there 2 times instead of 1 after micro-batch 1 was replayed." in told
    assert "- bad record: give `bad`" in told
    assert found.row() == "| a file | exactly once | **no** | **no** | **no** | yes | yes | **no** | - | - |"


def test_a_sink_of_keys_may_write_twice_but_has_to_replace(tmp_path: Path) -> None:
    """Duplicates reveal that it appends rows; declared ids must be there."""
    case = appending(tmp_path / "keys")
    promises = {"idempotent by key": "2 times instead of 1", "at least once with ids": "has no mark"}
    for promise, told in promises.items():
        (tmp_path / "keys").unlink(missing_ok=True)
        wrong = replace(case, promise=promise)  # type: ignore[arg-type]
        with pytest.raises(NonconformingError, match=told):
            check_sink(wrong).require()


def test_only_some_checks_can_be_left_out(tmp_path: Path) -> None:
    """The replay check is always required."""
    with pytest.raises(ValueError, match=r"replay: only bad record, credentials, slow server"):
        check_sink(replace(appending(tmp_path / "lines"), without={"replay": "no"}))


@contextmanager
def open_journal(
    folder: Path, writers: list[JournalWriter], records: Sequence[bytes] = ()
) -> Iterator[JournalLog]:
    """Open a journal, give it these records, and list its writer while it is open."""
    with closing(JournalWriter(folder)) as writer:
        writer.append(records)
        writers.append(writer)
        try:
            yield JournalLog(folder)
        finally:
            writers.remove(writer)


def test_a_source_that_loses_records_is_found(tmp_path: Path) -> None:
    """Lost are records that arrive while it is closed, and the second of two equal records."""
    seen: set[bytes] = set()

    writers: list[JournalWriter] = []

    def put(records: Any) -> None:
        for writer in writers:
            new = list(dict.fromkeys(record for record in records if record not in seen))
            seen.update(new)
            writer.append(new)

    found = check_source(
        SourceUnderTest(
            "a journal",
            "each record once",
            lambda: open_journal(tmp_path, writers),
            put,
            limit_s=0.5,
            without=NO_LOGIN,
        )
    )
    failed = {one.check: one.detail for one in found.outcomes if one.verdict == "fail"}
    assert failed.keys() == {"while closed", "duplicates"}
    assert "10 of 10 records were not there after 0.5 s" in failed["while closed"]
    assert "4 of 8 records" in failed["duplicates"]


@pytest.mark.parametrize(
    ("promise", "extra", "told"),
    [
        ("at least once", b'{"id": 3}', None),
        ("at least once", b'{"id": -3}', "b'{\"id\":-3}' is there too often, from the beginning"),
        ("each record once", b'{"id": 3}', "b'{\"id\":3}' is there too often, from the beginning"),
    ],
)
def test_a_source_may_repeat_known_records_at_least_once(
    tmp_path: Path, promise: SourcePromise, extra: bytes, told: str | None
) -> None:
    """Each time it is opened, the system sends a record of the first check again, or one that nobody gave to it."""
    waiting: list[bytes] = []
    writers: list[JournalWriter] = []

    def opened() -> AbstractContextManager[JournalLog]:
        first = [*waiting, extra]
        waiting.clear()
        return open_journal(tmp_path, writers, first)

    def put(records: Any) -> None:
        for writer in writers:
            writer.append(records)
        if not writers:
            waiting.extend(records)

    found = check_source(SourceUnderTest("a queue", promise, opened, put, without=NO_LOGIN))
    if told is None:
        found.require()
    else:
        with pytest.raises(NonconformingError, match=re.escape(told)):
            found.require()


def test_giving_up_is_judged() -> None:
    """It must come in time, with an error of penstock's that hides the secret."""

    def raising(error: Exception) -> Any:
        def attempt() -> None:
            raise error

        return attempt

    rejects_within(5, raising(ExternalSystemError("It is away.")), "secret")
    with pytest.raises(Refuted, match="the secret stands in"):
        rejects_within(5, raising(ExternalSystemError("Not with secret.")), "secret")
    with pytest.raises(Refuted, match="it raised OSError: broken"):
        rejects_within(5, raising(OSError("broken")))
    with pytest.raises(Refuted, match="as if nothing were wrong"):
        rejects_within(5, lambda: None)
    waits = threading.Event()
    with pytest.raises(Refuted, match=r"it still waits after 0\.1 s"):
        rejects_within(0.1, waits.wait)
    waits.set()


def test_the_silent_server_takes_connections() -> None:
    """It never answers."""
    with silent_server() as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
