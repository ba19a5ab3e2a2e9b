"""Compressed files are read like plain ones, in bounded memory, and up to the point of damage."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import FilesBinding
from penstock.records.schemas import record_type
from penstock.sources.base import BadRecord, SourceChunk
from penstock.sources.file_errors import UnreadableFileError
from penstock.sources.file_source import FileLog
from penstock.sources.lines import LineLimits, read_expanded_lines, read_lines

READING = record_type("n INT, s STRING")
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
    ".bz2": bz2.compress,
}
SMALL = LineLimits(chunk_bytes=64, chunk_lines=3, line_bytes=500)


def lines_of(chunks: list[SourceChunk]) -> list[tuple[int, bytes]]:
    return [
        (offset, line)
        for chunk in chunks
        for offset, line in zip(
            chunk.offsets.to_pylist(), (chunk.raw or pa.array([])).to_pylist(), strict=True
        )
    ]


def read(path: Path, most_bytes: int = 1 << 30) -> tuple[list[tuple[int, bytes]], str, int]:
    """Return the lines, and where and why reading ended early."""
    chunks: list[SourceChunk] = []
    try:
        chunks.extend(read_expanded_lines(str(path), "p", path.stat().st_size, most_bytes, SMALL))
    except UnreadableFileError as e:
        return lines_of(chunks), str(e), e.offset
    return lines_of(chunks), "", -1


def files(folder: Path, uri: str) -> list[SourceChunk]:
    """Return what a log reads of a folder."""
    binding = parse_binding("readings", uri, "data")
    assert isinstance(binding, FilesBinding)
    log = FileLog(binding, folder.parent / "readings.files")
    splits = log.splits(0, log.latest(0, limited=False), 4)
    return list(log.read(splits, READING))


def bad_of(chunks: list[SourceChunk]) -> list[BadRecord]:
    return [bad for chunk in chunks for bad in chunk.bad]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "in"
    found.mkdir()
    return found


@pytest.mark.parametrize("ending", PACK)
def test_a_compressed_file_has_the_lines_and_offsets_of_what_it_expands_to(
    tmp_path: Path, ending: str
) -> None:
    content = (
        b"\xef\xbb\xbf"
        + b"".join(b'{"n":%d}\n' % n * (n % 3) + b"\n" * (n % 5) for n in range(400))
        + b"last"
    )
    plain, packed = tmp_path / "a", tmp_path / f"a{ending}"
    plain.write_bytes(content)
    # A file may be several compressed ones, concatenated.
    packed.write_bytes(PACK[ending](content[:999]) + PACK[ending](content[999:]))
    expected = lines_of(list(read_lines(str(plain), "p", 0, len(content), SMALL)))
    assert read(packed) == (expected, "", -1)


@pytest.mark.parametrize("ending", PACK)
def test_a_truncated_file_yields_its_whole_lines_and_then_says_where_it_ends(
    tmp_path: Path, ending: str
) -> None:
    content = b"".join(b'{"n":%d}\n' % (n * 7919 % 10_007) for n in range(8_000))
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACK[ending](content[:9000]) + PACK[ending](content[9000:])[:-30])
    lines, why, offset = read(path)
    assert "cannot be expanded" in why
    text = b"".join(line for _, line in lines)
    assert content.startswith(text)
    assert text.endswith(b"\n")
    assert offset == len(text) > 8000
    assert read(path) == (lines, why, offset)


@pytest.mark.parametrize("ending", [".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("lines", [2, 5000])
def test_no_whole_line_before_the_damage_is_lost(tmp_path: Path, ending: str, lines: int) -> None:
    """This holds for small files too. Bytes after the damage are never returned as content."""
    content = b"".join(b'{"n": %d, "s": "%064d"}\n' % (number, number) for number in range(lines))
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACK[ending](content) + b"no member")
    found, reason, offset = read(path)
    assert b"".join(line for _, line in found) == content
    assert f"after the first {len(content)} bytes of its content" in reason
    assert offset == len(content)


def test_an_empty_file_has_no_lines_and_a_plain_one_is_not_taken_for_a_compressed_one(tmp_path: Path) -> None:
    empty, plain = tmp_path / "a.gz", tmp_path / "b.gz"
    empty.write_bytes(b"")
    plain.write_bytes(b'{"n":1}\n')
    assert read(empty) == ([], "", -1)
    assert read(plain)[::2] == ([], 0)


def test_a_file_that_expands_too_far_ends_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b'{"n":1}\n' * 1000))
    lines, why, offset = read(path, 8 * 100 + 3)
    assert (len(lines), offset) == (100, 800)
    assert "expands to more than 803 bytes" in why
    assert read(path, 8000)[1:] == ("", -1)


def test_a_line_that_expands_without_end_is_a_bad_record_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x" * 100_000 + b'\n{"n":1}\n'))
    chunks = list(read_expanded_lines(str(path), "p", path.stat().st_size, 1 << 30, SMALL))
    assert [bad.reason for bad in bad_of(chunks)] == [
        "The line is longer than 500 bytes; only its beginning is kept."
    ]
    assert lines_of(chunks) == [(100_001, b'{"n":1}\n')]


def test_what_is_appended_to_a_compressed_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b'{"n":1}\n'))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + gzip.compress(b'{"n":2}\n'))
    assert lines_of(list(read_expanded_lines(str(path), "p", size, 1 << 30))) == [(0, b'{"n":1}\n')]


@pytest.mark.parametrize("ending", PACK)
def test_a_folder_may_hold_plain_and_compressed_files(folder: Path, ending: str) -> None:
    (folder / f"a.jsonl{ending}").write_bytes(PACK[ending](b'{"n":1}\n{"n":2}\n'))
    (folder / "b.jsonl").write_bytes(b'{"n":3}\n')
    assert [line for _, line in lines_of(files(folder, f"jsonl:{folder}"))] == [
        b'{"n":1}\n',
        b'{"n":2}\n',
        b'{"n":3}\n',
    ]


@pytest.mark.parametrize("ending", PACK)
def test_csv_files_may_be_compressed(folder: Path, ending: str) -> None:
    (folder / f"a.csv{ending}").write_bytes(PACK[ending](b'n,s\n1,"a,b"\nx,c\n1,2,3\n2,"d\ne"\n'))
    chunks = files(folder, f"csv:{folder}")
    rows = [row for chunk in chunks for row in chunk.batch.to_pylist()]  # type: ignore[union-attr]
    assert rows == [{"n": 1, "s": "a,b"}, {"n": 2, "s": "d\ne"}]
    assert [(bad.offset, bad.raw) for bad in bad_of(chunks)] == [(2, b"x,c"), (3, b"1,2,3")]


@pytest.mark.parametrize("cut", [b"", b'1,"an open\nquote', b"1,2,3\n1", b"x,y\nx"])
def test_a_damaged_csv_file_has_the_rows_before_the_damage(folder: Path, cut: bytes) -> None:
    """The last row, which may be truncated, is left out in each attempt."""
    rows = b"".join(b"%d,%0150d\n" % (n, n * 7919) for n in range(60_000))
    (folder / "a.csv.gz").write_bytes(gzip.compress(b"n,s\n" + rows + cut) + b"no member")
    for _ in range(3):
        found = files(folder, f"csv:{folder}")
        read_rows = sum(len(chunk.offsets) for chunk in found)
        assert read_rows == 60_000 - (not cut)
        *others, bad = bad_of(found)
        assert bad.offset == read_rows + len(others)
        assert len(others) == cut.count(b"\n") - (b'"' in cut)
        assert "cannot be expanded" in bad.reason


def test_a_damaged_csv_file_without_rows_is_told(folder: Path) -> None:
    """The error comes also where not even the header can be decompressed."""
    (folder / "a.csv.gz").write_bytes(b"no gzip")
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"n,s\n") + b"no member")
    for query in ("", "?header=false"):
        assert [bad.partition for bad in bad_of(files(folder, f"csv:{folder}{query}"))] == [
            "a.csv.gz",
            "b.csv.gz",
        ]


def test_a_csv_file_that_expands_too_far_is_a_bad_record(folder: Path) -> None:
    (folder / "a.csv.gz").write_bytes(gzip.compress(b"n,s\n" + b"1,a\n" * 1000))
    [bad] = bad_of(files(folder, f"csv:{folder}?max_expanded_bytes=2000"))
    assert "expands to more than 2000 bytes" in bad.reason
    assert not bad_of(files(folder, f"csv:{folder}?max_expanded_bytes=4004"))


def test_large_compressed_files_are_not_cut(folder: Path) -> None:
    content = b"".join(b'{"n":%d}\n' % (n * 7919 % 1_000_003) for n in range(600_000))
    (folder / "a.jsonl.zst").write_bytes(pa.compress(content, "zstd", asbytes=True))
    binding = parse_binding("readings", f"jsonl:{folder}", "data")
    assert isinstance(binding, FilesBinding)
    log = FileLog(binding, folder.parent / "readings.files")
    [split] = log.splits(0, log.latest(0, limited=False), 4)
    assert split.end > 1 << 20
    assert sum(len(chunk.offsets) for chunk in log.read([split], READING)) == 600_000


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("?delimiter=%3B", 'n;s\n1;"a;b"\n2;c,d\n'),
        ("?delimiter=;", 'n;s\n1;"a;b"\n2;c,d\n'),
        ("?delimiter=tab&quote=none", "n\ts\n1\ta;b\n2\tc,d\n"),
        ("?quote='", "n,s\n1,'a;b'\n2,'c,d'\n"),
        ("?header=false", '1,a;b\n2,"c,d"\n'),
        ("?header=false&delimiter=|&quote=none", "1|a;b\n2|c,d\n"),
    ],
)
def test_csv_files_are_read_in_their_dialect(folder: Path, query: str, text: str) -> None:
    (folder / "a.csv").write_text(text)
    [chunk] = files(folder, f"csv:{folder}{query}")
    assert chunk.batch is not None
    assert chunk.batch.to_pylist() == [{"n": 1, "s": "a;b"}, {"n": 2, "s": "c,d"}]
    assert chunk.offsets.to_pylist() == [1, 2]


def test_bad_rows_of_a_dialect_are_shown_in_it(folder: Path) -> None:
    (folder / "a.csv").write_text("x;a\n1;b\n1;2;3\n2;c\n")
    chunks = files(folder, f"csv:{folder}?header=false&delimiter=;")
    assert [(bad.offset, bad.raw, bad.reason) for bad in bad_of(chunks)] == [
        (1, b"x;a", "field 'n': 'x' is not of type int32"),
        (3, b"1;2;3", "The row has 3 fields where the stream has 2."),
    ]
    assert [chunk.offsets.to_pylist() for chunk in chunks] == [[2, 4]]


def test_streams_of_nothing_among_others(tmp_path: Path) -> None:
    """Log rotation compresses empty files too, and `cat` puts them between others."""
    for ending, pack in PACK.items():
        path = tmp_path / f"f{ending}"
        path.write_bytes(pack(b"") + pack(b"a\n") + pack(b"") + pack(b"b\n") + pack(b""))
        assert read(path) == ([(0, b"a\n"), (2, b"b\n")], "", -1)
