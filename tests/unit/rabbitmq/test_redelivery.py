"""Redelivered messages: known by what the journal's notes say, as far back as they are kept."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.rabbitmq.rabbitmq_queue import _Inbox, _Message
from penstock.rabbitmq.rabbitmq_stream import _OFFSET, behind_last_offset
from penstock.sources.base import SourceChunk
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.sources.receiver import Group
from penstock.sources.redelivery import JournaledMessages, message_digest


def records(folder: Path) -> list[bytes]:
    log = JournalLog(folder)
    chunks: list[SourceChunk] = []
    for split in log.splits(0, log.latest(0, limited=False), 1):
        chunks += log.read([split], None)  # type: ignore[arg-type]  # the journal has no record type
    return [record for chunk in chunks for record in chunk.raw.to_pylist()]  # type: ignore[union-attr]


@given(
    groups=st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=12),
    remembered=st.integers(1, 20),
    cut=st.integers(0, 12),
)
def test_notes_give_back_what_was_remembered(groups: list[list[int]], remembered: int, cut: int) -> None:
    """A set rebuilt from notes knows at least what one that never stopped knows, and no more than was journaled."""
    digests = [[message_digest(str(number), b"") for number in group] for group in groups]
    straight = JournaledMessages(remembered=remembered)
    for group in digests:
        straight.add(group)
    notes = [b"".join(group) for group in digests]
    rebuilt = JournaledMessages(reversed(notes[:cut]), remembered)
    for group in digests[cut:]:
        rebuilt.add(group)
    newest = [digest for group in digests for digest in group][-remembered:]
    for digest in newest:
        assert digest in straight
        assert digest in rebuilt
    assert message_digest("never", b"") not in rebuilt


def test_a_digest_stands_for_id_and_content() -> None:
    """Two messages with the same id and other content are two messages."""
    assert message_digest("a", b"b") == message_digest("a", b"b")
    assert (
        len({message_digest(i, body) for i, body in [("a", b"b"), ("ab", b""), ("", b"ab"), ("a", b"c")]})
        == 4
    )


def test_only_what_is_marked_as_redelivered_is_left_out(tmp_path: Path) -> None:
    """The same id and content again is a new message, unless the broker says that it was sent before."""
    writer = JournalWriter(tmp_path)
    inbox = _Inbox(Group(writer, 10), JournaledMessages(), None)
    for tag, body in enumerate([b"x", b"y", b"x"], 1):
        inbox.take(_Message(tag, body, "same"))
    inbox.take(_Message(4, b"no id", is_redelivered=True))
    assert writer.position == 0
    assert inbox.commit() == 4
    writer.close()

    writer = JournalWriter(tmp_path)
    inbox = _Inbox(Group(writer, 10), JournaledMessages(writer.notes()), None)
    inbox.take(_Message(1, b"x", "same", is_redelivered=True))
    inbox.take(_Message(2, b"z", "same", is_redelivered=True))
    inbox.take(_Message(3, b"no id", is_redelivered=True))
    inbox.take(_Message(4, b"y", "same", is_redelivered=True))
    assert inbox.commit() == 4
    assert inbox.commit() == 0
    inbox.take(_Message(5, b"z", "same", is_redelivered=True))
    assert inbox.wait_s == 0, "what is known is acknowledged at once"
    assert inbox.commit() == 5
    writer.close()
    assert records(tmp_path) == [b"x", b"y", b"x", b"no id", b"z", b"no id"]


def test_a_full_inbox_takes_no_more(tmp_path: Path) -> None:
    """What comes behind the end of a bounded run is neither journaled nor acknowledged."""
    writer = JournalWriter(tmp_path)
    inbox = _Inbox(Group(writer, 10), JournaledMessages(), 2)
    for tag in (1, 2, 3):
        inbox.take(_Message(tag, b"%d" % tag))
    assert inbox.is_full
    assert inbox.commit() == 2
    writer.close()
    assert records(tmp_path) == [b"1", b"2"]


def test_a_stream_goes_on_behind_its_last_offset(tmp_path: Path) -> None:
    """The newest note says where, also when it belongs to no record."""
    writer = JournalWriter(tmp_path)
    assert behind_last_offset(writer.notes()) is None
    writer.append([], _OFFSET.pack(-1))
    assert behind_last_offset(writer.notes()) == 0
    writer.append([b"a", b"b"], _OFFSET.pack(7) + _OFFSET.pack(9))
    assert behind_last_offset(writer.notes()) == 10
    writer.close()
