"""The journal: after any crash it has what was appended, and each record is read once."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import CheckpointError
from penstock.records.schemas import record_type
from penstock.sources.base import Split
from penstock.sources.journal import JournalLog, JournalWriter

TEXT = record_type("line STRING")
RECORDS = st.lists(st.binary(max_size=30), max_size=8)
BLOCK = 24
"""The bytes of a block besides its note, its records, and four for the length of each."""


def read(log: JournalLog, splits: list[Split]) -> list[bytes]:
    found = []
    places = []
    for split in splits:
        for chunk in log.read([split], TEXT):
            assert chunk.raw is not None
            found += chunk.raw.to_pylist()
            places += [(chunk.partition, offset) for offset in chunk.offsets.to_pylist()]
    assert places == sorted(set(places)), "records sort by partition and offset"
    return found


def everything(folder: Path) -> list[bytes]:
    log = JournalLog(folder)
    return read(log, log.splits(0, log.latest(0, limited=False), 3))


@given(
    groups=st.lists(st.tuples(RECORDS, st.binary(max_size=9)), max_size=12),
    segment_bytes=st.integers(1, 400),
    split_bytes=st.integers(1, 200),
    parallelism=st.integers(1, 4),
    carries=st.booleans(),
)
def test_records_are_read_once_in_order_batch_by_batch(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[tuple[list[bytes], bytes]],
    segment_bytes: int,
    split_bytes: int,
    parallelism: int,
    carries: bool,
) -> None:
    """Positions divide the journal into batches, which together equal what was appended, byte by byte."""
    folder = tmp_path_factory.mktemp("journal")
    writer, log = JournalWriter(folder, segment_bytes), JournalLog(folder, carries=carries)
    position, found = 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sources.journal._SMALLEST_SPLIT_BYTES", split_bytes)
        for number, (group, note) in enumerate(groups):
            assert writer.append(group, note) == writer.position == log.latest(0, limited=False)
            if number % 3 == 2:
                writer.close()
                writer = JournalWriter(folder, segment_bytes)
            end = pickle.loads(pickle.dumps(log)).latest(position, limited=True)
            found += read(log, log.splits(position, end, parallelism))
            position = end
        while (end := log.latest(position, limited=True)) > position:
            found += read(log, log.splits(position, end, parallelism))
            position = end
    assert list(writer.notes()) == [note for group, note in reversed(groups) if group or note]
    writer.close()
    assert found == [record for group, _ in groups for record in group]
    assert log.lag(position) == {"bytes": 0}


@examples(60)
@given(
    groups=st.lists(RECORDS.filter(bool), min_size=1, max_size=5),
    torn=st.integers(0, 400),
    flipped=st.none() | st.integers(0, 400),
    garbage=st.binary(max_size=60),
    segment_bytes=st.integers(1, 300),
)
def test_a_tail_torn_anywhere_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[list[bytes]],
    torn: int,
    flipped: int | None,
    garbage: bytes,
    segment_bytes: int,
) -> None:
    """After the durable mark a crash may leave anything; whole groups stay, the rest is cut, and writing
    continues.
    """
    folder = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(folder, segment_bytes)
    durable = [b"one", b"two\n\0"]
    reported = writer.append(durable)
    mark = (folder / "mark").read_bytes()
    for group in groups:
        writer.append(group)
    writer.close()
    (folder / "mark").write_bytes(mark)
    tear(max(folder.glob("*.blocks")), reported, torn, flipped, garbage)

    writer = JournalWriter(folder, segment_bytes)
    assert writer.position >= reported
    kept = everything(folder)
    wholes = [
        durable + [record for group in groups[:count] for record in group] for count in range(len(groups) + 1)
    ]
    assert kept in wholes, "a group is there or not"
    if not torn and flipped is None:
        assert kept == wholes[-1]
    writer.append([b"next", b""])
    writer.close()
    assert everything(folder) == [*kept, b"next", b""]


def tear(segment: Path, reported: int, torn: int, flipped: int | None, garbage: bytes) -> None:
    """Cut a segment, flip a bit and append garbage, all after the bytes reported as durable."""
    durable = max(0, reported - int(segment.stem))
    content = bytearray(segment.read_bytes())
    del content[max(durable, len(content) - torn) :]
    if flipped is not None and durable + flipped < len(content):
        content[durable + flipped] ^= 4
    segment.write_bytes(bytes(content) + garbage)


def test_records_larger_than_what_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may exceed the read size, and a chunk never exceeds its limit."""
    monkeypatch.setattr("penstock.sources.journal_blocks._READ_BYTES", 100)
    monkeypatch.setattr("penstock.sources.journal_blocks._CHUNK_RECORDS", 3)
    records = [bytes([i]) * size for i, size in enumerate([5, 1000, 0, 0, 99, 100, 101, 1, 1])]
    writer = JournalWriter(tmp_path)
    for low in range(0, len(records), 5):
        writer.append(records[low : low + 5])
    writer.close()
    assert everything(tmp_path) == records
    log = JournalLog(tmp_path)
    chunks = [c for split in log.splits(0, log.latest(0, limited=False), 1) for c in log.read([split], TEXT)]
    assert [len(chunk.offsets) for chunk in chunks] == [3, 2, 3, 1]


def test_readers_trust_only_what_is_marked(tmp_path: Path) -> None:
    """Bytes that the writer has not finished are invisible."""
    writer, log = JournalWriter(tmp_path), JournalLog(tmp_path)
    end = writer.append([b"a"])
    with next(tmp_path.glob("*.blocks")).open("ab") as file:
        file.write(b"half a li")
    assert log.latest(0, limited=False) == end
    assert read(log, log.splits(0, end, 1)) == [b"a"]
    writer.close()


def test_a_killed_writer_keeps_what_it_appended(tmp_path: Path) -> None:
    """Kill -9 at a random moment: every record whose append returned is there once, in order."""
    script = """
        import sys
        from penstock.sources.journal import JournalWriter
        writer = JournalWriter(sys.argv[1], 5_000)
        number = writer.append([]) and int(sys.argv[2])
        for number in range(int(sys.argv[2]), 10**9):
            writer.append([b"%d" % number])
            print(number, flush=True)
    """
    first = 0
    for _ in range(2):
        command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(300):
                appended = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            appended = max([appended, *map(int, process.stdout.read().split(b"\n")[:-1])])
        JournalWriter(tmp_path).close()
        found = [int(record) for record in everything(tmp_path)]
        assert found == list(range(len(found)))
        assert len(found) > appended
        first = len(found)


def test_only_one_writer_is_open(tmp_path: Path) -> None:
    """A second run of the job cannot truncate what the first one is writing."""
    writer = JournalWriter(tmp_path)
    with pytest.raises(CheckpointError, match="another run"):
        JournalWriter(tmp_path)
    writer.append([b"a"])
    writer.close()
    again = JournalWriter(tmp_path)
    again.close()
    assert everything(tmp_path) == [b"a"]


def test_segments_that_were_read_are_deleted(tmp_path: Path) -> None:
    """`forget` deletes whole segments, but none that may still be read, nor the last one with its notes."""
    writer, log = JournalWriter(tmp_path, 10), JournalLog(tmp_path)
    positions = [writer.append([b"%09d" % i], b"note %d" % i) for i in range(5)]
    log.forget(positions[2] - 1)
    assert len(list(tmp_path.glob("*.blocks"))) == 3
    assert read(log, log.splits(positions[1], positions[4], 2)) == [b"%09d" % i for i in (2, 3, 4)]
    log.forget(positions[4])
    assert len(list(tmp_path.glob("*.blocks"))) == 2
    assert list(writer.notes()) == [b"note 4", b"note 3"]
    with pytest.raises(CheckpointError, match="no longer has"):
        log.splits(positions[0], positions[4], 2)
    writer.close()
    writer = JournalWriter(tmp_path, 10)
    assert writer.position == positions[4]
    writer.close()


def test_damage_is_a_clear_error(tmp_path: Path) -> None:
    """A journal that lost durable bytes, or a middle segment, refuses to start."""
    writer = JournalWriter(tmp_path, 10)
    for i in range(4):
        writer.append([b"%09d" % i])
    writer.close()
    block = BLOCK + 4 + 9
    segments = sorted(tmp_path.glob("*.blocks"))
    content = segments[-1].read_bytes()
    segments[-1].write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=f"damaged: it ends at {3 * block}, but had reached {4 * block}"
    ):
        JournalWriter(tmp_path, 10)
    segments[-1].write_bytes(content)
    segments[1].write_bytes(content[:3])
    with pytest.raises(CheckpointError, match="damaged"):
        JournalWriter(tmp_path, 10)
    with pytest.raises(CheckpointError, match="cannot be written"):
        JournalWriter("/proc/none")


def test_a_record_that_changed_on_disk_is_a_clear_error(tmp_path: Path) -> None:
    """Rereading returns what was written or raises; a wrong byte never becomes a wrong record."""
    writer = JournalWriter(tmp_path)
    first = writer.append([b"first"])
    writer.append([b"second"])
    writer.close()
    (segment,) = tmp_path.glob("*.blocks")
    segment.write_bytes(segment.read_bytes().replace(b"second", b"sEcond"))
    log = JournalLog(tmp_path)
    with pytest.raises(CheckpointError, match=f"damaged at byte {first}"):
        everything(tmp_path)
    assert read(log, log.splits(0, first, 1)) == [b"first"]


def test_a_frozen_journal_ends(tmp_path: Path) -> None:
    """A bounded run reads up to the present end, and an empty journal yields nothing."""
    log = JournalLog(tmp_path / "none")
    assert log.latest(0, limited=True) == 0
    assert log.splits(0, 0, 2) == []
    writer, log = JournalWriter(tmp_path), JournalLog(tmp_path)
    end = writer.append([b"a"])
    log.freeze()
    writer.append([b"b"])
    assert log.latest(0, limited=False) == end
    assert log.lag(0) == {"bytes": 2 * (BLOCK + 4 + 1)}
    writer.close()
