"""The journal: what was appended is there again, after any crash, and is read once."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CheckpointError
from penstock.records import record_type
from penstock.sources.base import Split
from penstock.sources.journal import JournalLog, JournalWriter

TEXT = record_type("line STRING")
LINES = st.lists(
    st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b and b.strip() != b""), max_size=8
)


def read(log: JournalLog, splits: list[Split]) -> list[bytes]:
    found = []
    places = []
    for split in splits:
        for chunk in log.read(split, TEXT):
            assert chunk.raw is not None
            found += [line.rstrip(b"\n") for line in chunk.raw.to_pylist()]
            places += [(chunk.partition, offset) for offset in chunk.offsets.to_pylist()]
    assert places == sorted(set(places)), "records sort by partition and offset"
    return found


def everything(folder: Path) -> list[bytes]:
    log = JournalLog(folder)
    return read(log, log.splits(0, log.latest(0, limited=False), 3))


@settings(deadline=None, max_examples=50)
@given(groups=st.lists(LINES, max_size=12), segment_bytes=st.integers(1, 200), parallelism=st.integers(1, 4))
def test_lines_are_read_once_in_order_batch_by_batch(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], segment_bytes: int, parallelism: int
) -> None:
    """Positions cut the journal into batches that together are what was appended."""
    folder = tmp_path_factory.mktemp("journal")
    writer, log = JournalWriter(folder, segment_bytes), JournalLog(folder)
    position, found = 0, []
    for number, group in enumerate(groups):
        assert writer.append(group) == writer.position == log.latest(0, limited=False)
        if number % 3 == 2:
            writer.close()
            writer = JournalWriter(folder, segment_bytes)
        end = pickle.loads(pickle.dumps(log)).latest(position, limited=True)
        found += read(log, log.splits(position, end, parallelism))
        position = end
    while (end := log.latest(position, limited=True)) > position:
        found += read(log, log.splits(position, end, parallelism))
        position = end
    writer.close()
    assert found == [line for group in groups for line in group]
    assert log.lag(position) == {"bytes": 0}


@settings(deadline=None, max_examples=50)
@given(lost=st.integers(0, 300), segment_bytes=st.integers(1, 60), garbage=st.binary(max_size=5))
def test_a_tail_torn_at_any_byte_is_repaired(
    tmp_path_factory: pytest.TempPathFactory, lost: int, segment_bytes: int, garbage: bytes
) -> None:
    """Behind the mark a crash may leave anything; whole lines are kept, the rest is cut, and writing goes on."""
    folder = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(folder, segment_bytes)
    durable = [b"one", b"two"]
    reported = writer.append(durable)
    unmarked = [b"three", b"four", b"five"]
    mark = (folder / "mark").read_bytes()
    for line in unmarked:
        writer.append([line])
    writer.close()
    (folder / "mark").write_bytes(mark)
    segments = sorted(folder.glob("*.lines"))
    last_start = int(segments[-1].stem)
    keep = max(segments[-1].stat().st_size - lost, reported - last_start, 0)
    os.truncate(segments[-1], keep)
    with segments[-1].open("ab") as file:
        file.write(garbage.replace(b"\n", b""))

    writer = JournalWriter(folder, segment_bytes)
    assert writer.position >= reported
    kept = everything(folder)
    assert kept == [*durable, *unmarked][: len(kept)]
    assert len(kept) >= len(durable)
    writer.append([b"next"])
    writer.close()
    assert everything(folder) == [*kept, b"next"]


def test_readers_trust_only_what_is_marked(tmp_path: Path) -> None:
    """Bytes that the writer has not finished are not seen."""
    writer, log = JournalWriter(tmp_path), JournalLog(tmp_path)
    end = writer.append([b"a"])
    with next(tmp_path.glob("*.lines")).open("ab") as file:
        file.write(b"half a li")
    assert log.latest(0, limited=False) == end
    assert read(log, log.splits(0, end, 1)) == [b"a"]
    writer.close()


def test_a_killed_writer_keeps_what_it_appended(tmp_path: Path) -> None:
    """Kill -9 at a random moment: every line whose append returned is there, in order, and none twice."""
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
        found = [int(line) for line in everything(tmp_path)]
        assert found == list(range(len(found)))
        assert len(found) > appended
        first = len(found)


def test_only_one_writer_is_open(tmp_path: Path) -> None:
    """A second run of the job cannot cut off what the first is writing."""
    writer = JournalWriter(tmp_path)
    with pytest.raises(CheckpointError, match="another run"):
        JournalWriter(tmp_path)
    writer.append([b"a"])
    writer.close()
    again = JournalWriter(tmp_path)
    again.close()
    assert everything(tmp_path) == [b"a"]


def test_segments_that_were_read_are_deleted(tmp_path: Path) -> None:
    """`forget` deletes whole segments, and never what may still be read."""
    writer, log = JournalWriter(tmp_path, 10), JournalLog(tmp_path)
    positions = [writer.append([b"%09d" % i]) for i in range(5)]
    log.forget(positions[2] - 1)
    assert len(list(tmp_path.glob("*.lines"))) == 3
    assert read(log, log.splits(positions[1], positions[4], 2)) == [b"%09d" % i for i in (2, 3, 4)]
    log.forget(positions[4])
    assert len(list(tmp_path.glob("*.lines"))) == 1
    with pytest.raises(CheckpointError, match="no longer has"):
        log.splits(positions[0], positions[4], 2)
    writer.close()
    writer = JournalWriter(tmp_path, 10)
    assert writer.position == positions[4]
    writer.close()


def test_damage_is_a_clear_error(tmp_path: Path) -> None:
    """A journal that lost what it had marked, or a segment in the middle, stops the start."""
    writer = JournalWriter(tmp_path, 10)
    for i in range(4):
        writer.append([b"%09d" % i])
    writer.close()
    segments = sorted(tmp_path.glob("*.lines"))
    content = segments[-1].read_bytes()
    segments[-1].write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged: it ends at 30, but had reached 40"):
        JournalWriter(tmp_path, 10)
    segments[-1].write_bytes(content)
    segments[1].write_bytes(content[:3])
    with pytest.raises(CheckpointError, match="damaged"):
        JournalWriter(tmp_path, 10)
    with pytest.raises(CheckpointError, match="cannot be written"):
        JournalWriter("/proc/none")


def test_a_frozen_journal_ends(tmp_path: Path) -> None:
    """A bounded run reads up to what is there, and an empty journal is empty."""
    log = JournalLog(tmp_path / "none")
    assert log.latest(0, limited=True) == 0
    assert log.splits(0, 0, 2) == []
    writer, log = JournalWriter(tmp_path), JournalLog(tmp_path)
    end = writer.append([b"a"])
    log.freeze()
    writer.append([b"b"])
    assert log.latest(0, limited=False) == end
    assert log.lag(0) == {"bytes": 4}
    writer.close()
