"""Group commits: messages arrive while the disk is busy, and are acknowledged once they are durable."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.sources.group_commits import GroupCommits
from penstock.sources.journal import JournalWriter
from penstock.sources.journal_blocks import PackedRecords

PATIENCE_S = 30


class SlowJournal(JournalWriter):
    """A journal whose disk blocks until it is released, and fails on request."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_work = threading.Event()
        self.groups: list[list[bytes]] = []
        self.fails = False

    def append(self, records: Sequence[bytes] | PackedRecords, note: bytes = b"") -> int:
        assert isinstance(records, list)
        if not records:
            return self.position
        assert self.may_work.wait(PATIENCE_S)
        if self.fails:
            raise CheckpointError("the disk is full")
        self.groups.append(records)
        return super().append(records, note)


def test_messages_arrive_while_a_group_is_committed(tmp_path: Path) -> None:
    """No message is acknowledged before it is durable; those of the next group wait for their own commit."""
    journal, acknowledged = SlowJournal(tmp_path), list[int]()
    with GroupCommits(journal, 3, acknowledged.extend) as commits:
        commits.add(b"a", 1)
        commits.step()
        for body, number in [(b"b", 2), (b"c", 3), (b"d", 4)]:
            commits.add(body, number)
            commits.step()
        assert (journal.groups, acknowledged) == ([], [])
        assert commits.wait_s == 0.002, "a due group does not make the receiver spin while the disk works"
        journal.may_work.set()
        while len(acknowledged) < 4:
            commits.step()
        assert acknowledged == [1, 2, 3, 4]
        commits.add(b"e", 5)
        commits.finish()
    assert journal.groups == [[b"a"], [b"b", b"c", b"d"], [b"e"]]
    assert acknowledged == [1, 2, 3, 4, 5]
    journal.close()


def receive(journal: JournalWriter, acknowledged: list[int], *, is_lost: bool) -> None:
    """Receive a message, then lose the connection or end."""
    with GroupCommits(journal, 1, acknowledged.extend) as commits:
        commits.add(b"a", 1)
        commits.step()
        if is_lost:
            raise ConnectionError
        commits.finish()


def test_a_lost_connection_leaves_no_commit_behind(tmp_path: Path) -> None:
    """The next writer starts only when the disk is done. Its messages are not acknowledged, so they are
    redelivered.
    """
    journal, acknowledged = SlowJournal(tmp_path), list[int]()
    threading.Timer(0.05, journal.may_work.set).start()
    with pytest.raises(ConnectionError):
        receive(journal, acknowledged, is_lost=True)
    assert (journal.groups, acknowledged) == ([[b"a"]], [])
    journal.close()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_disk_that_fails_ends_the_receiver(tmp_path: Path, is_lost: bool) -> None:
    """This holds also when the connection is lost at the same time."""
    journal, acknowledged = SlowJournal(tmp_path), list[int]()
    journal.fails = True
    journal.may_work.set()
    with pytest.raises(CheckpointError, match="the disk is full"):
        receive(journal, acknowledged, is_lost=is_lost)
    assert acknowledged == []
    journal.close()
