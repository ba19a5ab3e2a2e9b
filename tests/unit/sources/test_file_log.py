"""The file log: every file once, in order, and the same order after a crash."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bindings.types import FilesBinding
from penstock.errors import BindingError, CheckpointError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sources import file_source
from penstock.sources.base import BadRecord, Split
from penstock.sources.file_source import FileLog, share

READING = record_type("n INT")


def binding(
    folder: Path, file_format: str = "jsonl", limit: int | None = None, missing: str = "fail"
) -> FilesBinding:
    uri = f"{file_format}:{folder}"
    return FilesBinding("readings", uri, file_format, str(folder), limit, missing)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "in"
    found.mkdir()
    return found


@pytest.fixture
def log(tmp_path: Path, folder: Path) -> FileLog:
    return FileLog(binding(folder), tmp_path / "checkpoint" / "files.log")


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f'{{"n":"{name}"}}\n')


def names(log: FileLog, start: int, end: int) -> list[str]:
    return [split.partition for split in log.splits(start, end, 2)]


def lines_and_bad(log: FileLog, splits: list[Split]) -> tuple[list[bytes], list[BadRecord]]:
    lines: list[bytes] = []
    bad: list[BadRecord] = []
    for split in splits:
        for chunk in log.read([split], READING):
            lines += chunk.raw.to_pylist() if chunk.raw is not None else []
            bad += chunk.bad
    return lines, bad


def test_files_are_taken_in_name_order_as_they_appear(log: FileLog, folder: Path) -> None:
    """New files come after known ones, whatever their names, and in name order among themselves."""
    write(folder, "c", "b")
    assert log.latest(0, limited=True) == 2
    write(folder, "z", "a")
    assert log.latest(2, limited=True) == 4
    assert [names(log, 0, 2), names(log, 2, 4)] == [["b", "c"], ["a", "z"]]
    assert names(log, 1, 3) == ["a", "c"], "one batch reads in name order"


def test_a_file_is_not_overtaken_by_one_that_appears_later(
    log: FileLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has `c`, which appeared during it, but misses `b`, which existed before `c`."""
    write(folder, "a", "b", "c", "d")
    listings = iter([["a", "c"], ["a", "b", "c", "d"], ["a", "b", "c", "d"], ["a", "b", "c", "d"]])
    monkeypatch.setattr(file_source, "_visible_names", lambda _: next(listings))
    assert log.latest(0, limited=True) == 3
    assert names(log, 0, 3) == ["a", "b", "c"]
    assert log.latest(3, limited=True) == 4


def test_hidden_and_unfinished_files_are_ignored(log: FileLog, folder: Path) -> None:
    """Names of unfinished files, and folders, are skipped; a file is taken once it is renamed."""
    write(folder, ".hidden", "_started", "a.tmp", "a.crc", "a")
    (folder / "sub").mkdir()
    (folder / "dangling").symlink_to(folder / "nothing")
    assert names(log, 0, log.latest(0, limited=False)) == ["a"]
    (folder / "_started").rename(folder / "b")
    assert names(log, 1, log.latest(1, limited=False)) == ["b"]


def test_a_batch_takes_at_max_max_files(tmp_path: Path, folder: Path) -> None:
    """`max_files_per_batch` limits a batch, and only when the runtime asks for a limit."""
    log = FileLog(binding(folder, limit=2), tmp_path / "log")
    write(folder, "a", "b", "c", "d", "e")
    assert log.latest(0, limited=True) == 2
    assert log.latest(2, limited=True) == 4
    assert log.latest(4, limited=True) == 5
    assert log.latest(0, limited=False) == 5
    assert log.lag(2) == {"files": 3, "bytes": 30}


def test_a_batch_takes_at_max_max_bytes(tmp_path: Path, folder: Path) -> None:
    """At least one file is taken; tiny files count as 4096 bytes, which bounds their number."""
    for name, size in (("a", 10_000), ("b", 6000), ("c", 1), ("d", 50_000), ("e", 1), ("f", 1)):
        (folder / name).write_bytes(b"\n" * size)
    limited = dataclasses.replace(binding(folder), max_bytes_per_batch=16_000)
    log = FileLog(limited, tmp_path / "log")
    ends = [0]
    while ends[-1] < 6:
        ends.append(log.latest(ends[-1], limited=True))
    assert ends == [0, 2, 3, 4, 6]
    assert log.latest(0, limited=False) == 6
    assert FileLog(binding(folder), tmp_path / "log").latest(0, limited=True) == 6, "the usual limit is large"


def test_freezing_fixes_the_end(log: FileLog, folder: Path) -> None:
    """A bounded run reads what was there at the start; the next run reads the rest."""
    write(folder, "a")
    log.freeze()
    write(folder, "b")
    assert log.latest(0, limited=False) == 1
    assert log.lag(1)["files"] == 0
    again = pickle.loads(pickle.dumps(log))
    assert again.latest(1, limited=False) == 2


def test_a_restart_gives_the_same_splits(tmp_path: Path, folder: Path) -> None:
    """A position always means the same files, also when files with names in between arrive later."""
    write(folder, "b", "d")
    log = FileLog(binding(folder), tmp_path / "log")
    assert log.latest(0, limited=False) == 2
    before = log.splits(0, 2, 4)
    write(folder, "a", "c")
    again = FileLog(binding(folder), tmp_path / "log")
    assert again.splits(0, 2, 4) == before
    assert names(again, 2, again.latest(2, limited=False)) == ["a", "c"]


@given(cut=st.integers(0, 10_000))
def test_a_crash_while_the_log_is_written_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """A log torn at any byte after the reported position still lists every file once, and continues."""
    base = tmp_path_factory.mktemp("crash")
    (base / "in").mkdir()
    log = FileLog(binding(base / "in"), base / "log")
    write(base / "in", "m", "k")
    reported = log.latest(0, limited=False)
    durable = (base / "log").stat().st_size
    write(base / "in", "a", "z", "b\n\u00e9")
    log.latest(reported, limited=False)
    whole = (base / "log").stat().st_size
    os.truncate(base / "log", durable + cut % (whole - durable + 1))

    again = FileLog(binding(base / "in"), base / "log")
    end = again.latest(reported, limited=False)
    assert names(again, 0, reported) == ["k", "m"]
    assert sorted(names(again, reported, end)) == ["a", "b\n\u00e9", "z"]
    write(base / "in", "q")
    third = FileLog(binding(base / "in"), base / "log")
    assert names(third, end, third.latest(end, limited=False)) == ["q"]


def test_a_lost_or_damaged_log_is_a_clear_error(tmp_path: Path, log: FileLog, folder: Path) -> None:
    """A checkpoint whose file list does not match its position stops the job instead of misreading."""
    with pytest.raises(CheckpointError, match="has read 3 files"):
        log.splits(0, 3, 1)
    (tmp_path / "damaged").write_text("{}\n[]\n")
    with pytest.raises(CheckpointError, match="damaged"):
        FileLog(binding(folder), tmp_path / "damaged").latest(0, limited=False)
    write(folder, "a")
    with pytest.raises(CheckpointError, match="--checkpoint"):
        FileLog(binding(folder), "/proc/none/log").latest(0, limited=False)


def test_a_copy_in_another_process_sees_what_was_found(log: FileLog, folder: Path) -> None:
    """The driver asks for the lag while Spark's planner process finds the files."""
    driver = pickle.loads(pickle.dumps(log))
    assert driver.lag(0)["files"] == 0
    for name in ("a", "b"):
        write(folder, name)
        end = log.latest(0, limited=False)
        assert driver.lag(0)["files"] == end
        assert driver.splits(0, end, 1) == log.splits(0, end, 1)


def test_changes_within_one_clock_tick_are_seen(log: FileLog, folder: Path) -> None:
    """A young directory is listed again even when its mtime is the same."""
    write(folder, "a")
    stamp = folder.stat()
    assert log.latest(0, limited=False) == 1
    write(folder, "b")
    os.utime(folder, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert log.latest(1, limited=False) == 2


def test_an_unchanged_directory_is_not_listed_again(
    log: FileLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for the latest position costs one stat while nothing changes."""
    write(folder, "a")
    old = time.time_ns() - 10_000_000_000
    os.utime(folder, ns=(old, old))
    assert log.latest(0, limited=False) == 1
    monkeypatch.setattr(os, "scandir", lambda _: pytest.fail("listed again"))
    assert log.latest(1, limited=False) == 1


def test_the_directory_must_exist(tmp_path: Path, log: FileLog, folder: Path) -> None:
    """`check` names the stream and the directory; a directory that disappears later is an external error."""
    log.check()
    with pytest.raises(BindingError, match=r"'readings'.*/none .*does not exist.*-D readings=jsonl:DIR"):
        FileLog(binding(tmp_path / "none"), tmp_path / "log").check()
    write(folder, "a")
    with pytest.raises(BindingError, match="is a file"):
        FileLog(binding(folder / "a"), tmp_path / "log").check()
    (folder / "a").unlink()
    folder.rmdir()
    with pytest.raises(ExternalSystemError, match="can no longer be listed"):
        log.latest(0, limited=False)


def test_large_files_are_shared_and_small_ones_stay_whole(tmp_path: Path, folder: Path) -> None:
    """Tasks get equal shares of the bytes, and every line is read exactly once."""
    line = b'{"n":123456789}\n'
    (folder / "big").write_bytes(line * 400_000)
    (folder / "small").write_bytes(line * 10)
    log = FileLog(binding(folder), tmp_path / "log")
    splits = log.splits(0, log.latest(0, limited=False), 4)
    assert [split.partition for split in splits] == ["big"] * 4 + ["small"]
    assert lines_and_bad(log, splits) == ([line] * 400_010, [])
    shares = [sum(split.end - split.start for split in group) for group in share(splits, 4)]
    assert len(shares) == 4
    assert max(shares) < 1.1 * min(shares)


@given(sizes=st.lists(st.integers(0, 10**7), max_size=12), parallelism=st.integers(1, 9))
def test_shares_keep_order_and_leave_nothing_out(sizes: list[int], parallelism: int) -> None:
    """Grouping splits for tasks keeps their order and drops none."""
    splits = [Split(f"f{i}", f"f{i}", 0, size) for i, size in enumerate(sizes)]
    groups = share(splits, parallelism)
    assert [split for group in groups for split in group] == splits
    assert len(groups) <= parallelism


def test_one_row_group_is_shared_by_tasks(tmp_path: Path, folder: Path) -> None:
    """A Parquet file is cut by rows, also inside its row group."""
    rows = 600_000
    values = [(i * 2_654_435_761) % 2**31 for i in range(rows)]
    pq.write_table(pa.table({"n": pa.array(values, pa.int32())}), folder / "f.parquet", row_group_size=rows)
    log = FileLog(binding(folder, "parquet"), tmp_path / "log")
    splits = log.splits(0, log.latest(0, limited=False), 3)
    assert [(split.start, split.end) for split in splits] == [
        (0, 200_000),
        (200_000, 400_000),
        (400_000, rows),
    ]
    seen: list[int] = []
    offsets: list[int] = []
    for split in splits:
        for chunk in log.read([split], READING):
            assert chunk.batch is not None
            seen += chunk.batch.column("n").to_pylist()
            offsets += chunk.offsets.to_pylist()
    assert seen == values
    assert offsets == list(range(rows))


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    """An empty file counts as a file and has no records, in every format."""
    for file_format in ("jsonl", "csv", "parquet"):
        folder = tmp_path / file_format
        folder.mkdir()
        (folder / "empty").touch()
        log = FileLog(binding(folder, file_format), tmp_path / f"{file_format}.log")
        assert log.latest(0, limited=False) == 1
        assert lines_and_bad(log, log.splits(0, 1, 2)) == ([], [])


def test_files_that_cannot_be_understood_become_bad_records(tmp_path: Path) -> None:
    """Reported by name: a truncated Parquet file, CSV files in another encoding or with an endless header."""
    broken = {
        "parquet": [b"PAR1 and then nothing", b"PAR1" + b"\xff" * 100 + b"\x10\0\0\0PAR1"],
        "csv": [b"\xff\xfe\x00,1\n2,3\n", b"n" * 200_000 + b"\n1\n"],
    }
    for file_format, contents in broken.items():
        folder = tmp_path / file_format
        folder.mkdir()
        for number, content in enumerate(contents):
            (folder / f"broken-{number}").write_bytes(content)
        log = FileLog(binding(folder, file_format), tmp_path / f"{file_format}.log")
        splits = log.splits(0, log.latest(0, limited=False), 2)
        lines, bad = lines_and_bad(log, splits)
        assert lines == []
        assert [(record.partition, record.offset, record.raw) for record in bad] == [
            (f"broken-{number}", 0, content[:4096]) for number, content in enumerate(contents)
        ]
        assert str(folder / "broken-0") in bad[0].reason
        for split in splits:
            assert all(chunk.batch is not None for chunk in log.read([split], READING))


def write_as(file_format: str, path: Path) -> None:
    """One reading in a format."""
    if file_format == "parquet":
        pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), path)
    else:
        path.write_text("n\n1\n" if file_format == "csv" else '{"n":1}\n')


@pytest.mark.parametrize("file_format", ["jsonl", "text", "csv", "parquet"])
def test_a_file_that_is_away_is_read_when_it_is_back(tmp_path: Path, folder: Path, file_format: str) -> None:
    """Its records are neither lost nor dead letters: the reader fails, names the file, and says what to do."""
    write_as(file_format, folder / "a")
    log = FileLog(binding(folder, file_format), tmp_path / "log")
    splits = log.splits(0, log.latest(0, limited=False), 1)
    (folder / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(
        ExternalSystemError,
        match=rf"'readings': the file {folder}/a .* disappeared .*{file_format}:.*missing=skip",
    ):
        list(log.read(splits[:1], READING))
    if file_format == "parquet":
        with pytest.raises(ExternalSystemError, match="disappeared"):
            log.splits(0, 1, 1)
    (tmp_path / "elsewhere").rename(folder / "a")
    assert log.splits(0, 1, 1) == splits
    chunks = list(log.read(splits[:1], READING))
    assert [(len(chunk.offsets), len(chunk.bad)) for chunk in chunks] == [(1, 0)]


@pytest.mark.parametrize("file_format", ["jsonl", "text", "csv", "parquet"])
def test_a_file_that_is_gone_may_be_left_out(tmp_path: Path, folder: Path, file_format: str) -> None:
    """With missing=skip it is one dead letter, but not when the whole directory is missing."""
    write_as(file_format, folder / "a")
    log = FileLog(binding(folder, file_format, missing="skip"), tmp_path / "log")
    end = log.latest(0, limited=False)
    (folder / "a").unlink()
    splits = log.splits(0, end, 1)
    lines, bad = lines_and_bad(log, splits)
    assert lines == []
    assert [(record.partition, record.offset, record.raw) for record in bad] == [("a", 0, b"")]
    assert f"{folder}/a disappeared" in bad[0].reason
    folder.rename(tmp_path / "away")
    with pytest.raises(ExternalSystemError, match="disappeared"):
        list(log.read(splits[:1], READING))


@pytest.mark.parametrize("file_format", ["jsonl", "text", "csv"])
def test_an_error_of_the_disk_is_no_dead_letter(tmp_path: Path, folder: Path, file_format: str) -> None:
    """The kernel answers a read of unmapped memory with EIO, as it does for a broken disk."""
    log = FileLog(binding(folder, file_format), tmp_path / "log")
    with pytest.raises(ExternalSystemError, match=r"/proc/self/mem cannot be read \(Input/output error\)"):
        list(log.read([Split("mem", "/proc/self/mem", 0, 100)], READING))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        PermissionError(errno.EACCES, "Permission denied"),
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 64 failed"),
    ],
)
def test_an_error_of_the_system_within_a_table_is_no_dead_letter(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """This includes errors that Arrow raises in the middle of a file, and errors while files are split."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    for file_format, name in (("parquet", "pq.ParquetFile"), ("csv", "_open_csv")):
        write_as(file_format, folder / file_format)
        split = Split(file_format, str(folder / file_format), 0, 1)
        log = FileLog(binding(folder, file_format), tmp_path / "log")
        with monkeypatch.context() as patched:
            patched.setattr(f"penstock.sources.file_tables.{name}", refuse)
            with pytest.raises(ExternalSystemError, match=f"{file_format} cannot be read.*started again"):
                list(log.read([split], READING))
    log = FileLog(binding(folder, "parquet"), tmp_path / "log")
    end = log.latest(0, limited=False)
    monkeypatch.setattr("penstock.sources.file_tables.pq.read_metadata", refuse)
    with pytest.raises(ExternalSystemError, match="cannot be read"):
        log.splits(0, end, 1)


def test_a_file_that_cannot_be_looked_at_is_not_passed_over(
    log: FileLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a bounded run would end without it."""
    write(folder, "a")

    stat = os.stat

    def refuse(path: str, **how: Any) -> os.stat_result:
        if str(path).endswith("/a"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return stat(path, **how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        with pytest.raises(ExternalSystemError, match="can no longer be listed"):
            log.freeze()
    log.freeze()
    assert log.latest(0, limited=False) == 1


def test_a_directory_that_was_read_and_is_away_is_no_mistake_of_the_user(
    tmp_path: Path, log: FileLog, folder: Path
) -> None:
    """The error is external, so a job that starts meanwhile may retry."""
    write(folder, "a")
    log.latest(0, limited=False)
    folder.rename(tmp_path / "away")
    with pytest.raises(ExternalSystemError, match=r"can no longer be listed .*Bring it back"):
        log.check()


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_a_file_that_has_shrunk_is_reported(tmp_path: Path, folder: Path, file_format: str) -> None:
    """The remaining content is read, and the loss is reported."""
    content = b'{"n":1}\n{"n":2}\n' if file_format == "jsonl" else b"n\n1\n222222\n"
    (folder / "a").write_bytes(content)
    log = FileLog(binding(folder, file_format), tmp_path / "log")
    splits = log.splits(0, log.latest(0, limited=False), 1)
    os.truncate(folder / "a", content.index(b"\n", 3) + 1)
    chunks = [chunk for split in splits for chunk in log.read([split], READING)]
    assert sum(len(chunk.offsets) for chunk in chunks) == 1
    assert [bad.partition for chunk in chunks for bad in chunk.bad] == ["a"]
    assert "had at least" in chunks[-1].bad[0].reason


def test_a_truncated_parquet_file_is_reported_and_others_are_read(tmp_path: Path, folder: Path) -> None:
    """One truncated file does not stop the job."""
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"n": pa.array(range(1000), pa.int32())}), folder / name)
    os.truncate(folder / "a.parquet", (folder / "a.parquet").stat().st_size // 2)
    log = FileLog(binding(folder, "parquet"), tmp_path / "log")
    chunks = [c for s in log.splits(0, log.latest(0, limited=False), 2) for c in log.read([s], READING)]
    assert [len(chunk.batch) for chunk in chunks if chunk.batch is not None] == [0, 1000]
    assert [bad.partition for chunk in chunks for bad in chunk.bad] == ["a.parquet"]


def test_what_is_appended_to_a_known_file_is_reported(log: FileLog, folder: Path) -> None:
    """Appended lines after the logged size are not read, and this is reported."""
    write(folder, "a")
    (folder / "started").touch()
    end = log.latest(0, limited=False)
    for name in ("a", "started"):
        with (folder / name).open("a") as file:
            file.write("more\n")
    lines, bad = lines_and_bad(log, log.splits(0, end, 2))
    assert lines == [b'{"n":"a"}\n']
    assert [(record.partition, record.raw) for record in bad] == [("a", b"more\n"), ("started", b"more\n")]
    assert "has grown" in bad[0].reason


def test_a_name_that_is_no_text_gives_a_partition_that_is(log: FileLog, folder: Path) -> None:
    """File names are bytes; partition names are text."""
    with open(os.fsencode(folder) + b"/\xff", "wb") as file:  # noqa: PTH123  # pathlib takes no bytes
        file.write(b"{}\n")
    splits = log.splits(0, log.latest(0, limited=False), 1)
    assert [split.partition for split in splits] == ["\\xff"]
    assert lines_and_bad(log, splits) == ([b"{}\n"], [])
