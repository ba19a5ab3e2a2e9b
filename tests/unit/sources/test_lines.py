"""Lines: for any bytes and any cuts, each line is read once and in order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

from penstock.sources.lines import LineLimits, read_lines

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_by_hand(content: bytes) -> list[tuple[int, bytes]]:
    """The model: the non-blank lines, stripped at the end, with their start offsets."""
    found: list[tuple[int, bytes]] = []
    position = len(BYTE_ORDER_MARK) if content.startswith(BYTE_ORDER_MARK) else 0
    for line in content[position:].split(b"\n"):
        if line.strip(b" \t\r"):
            found.append((position, line.rstrip(b" \t\r\n")))
        position += len(line) + 1
    return found


def lines_of(path: Path, bounds: list[int], limits: LineLimits) -> list[tuple[int, bytes]]:
    """Return the lines as read in ranges that meet at `bounds`."""
    found: list[tuple[int, bytes]] = []
    for start, end in itertools.pairwise(bounds):
        for chunk in read_lines(str(path), "p", start, end, limits):
            assert chunk.raw is not None
            assert not chunk.bad
            assert chunk.partition == "p"
            assert 0 < len(chunk.raw) == len(chunk.offsets) <= limits.chunk_lines
            values = [line.rstrip(b" \t\r\n") for line in chunk.raw.to_pylist()]
            found.extend(zip(chunk.offsets.to_pylist(), values, strict=True))
    return found


CONTENT = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"a", b"{}", b" ", b"\t", b"bcd" * 30, b"\xff", b"\x00"]), max_size=60
).map(b"".join) | st.binary(max_size=300)


@examples(60)
@given(content=CONTENT, cuts=st.lists(st.integers(0, 300), max_size=6), data=st.data())
@example(content=b"\n\n{}", cuts=[0, 1, 2], data=None)
@example(content=BYTE_ORDER_MARK, cuts=[], data=None)
@example(content=BYTE_ORDER_MARK + b"\n{}\n", cuts=[3, 4], data=None)
def test_each_line_comes_once_wherever_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int], data: st.DataObject | None
) -> None:
    """Splits give every line exactly once and in order, for any content, cuts and buffer sizes."""
    limits = LineLimits(chunk_bytes=4, chunk_lines=2, line_bytes=1 << 20)
    if data is not None:
        limits = LineLimits(data.draw(st.integers(1, 400)), data.draw(st.integers(1, 9)), 1 << 20)
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(content)
    bounds = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    assert lines_of(path, bounds, limits) == lines_by_hand(content)


def test_a_line_longer_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    """The chunk grows until it holds the line."""
    path = tmp_path / "f"
    path.write_bytes(b"a\n" + b"b" * 300_000 + b"\nc")
    limits = LineLimits(chunk_bytes=100)
    assert [len(line) for _, line in lines_of(path, [0, path.stat().st_size], limits)] == [1, 300_000, 1]


def test_a_line_without_end_becomes_a_bad_record(tmp_path: Path) -> None:
    """A line beyond the limit is reported with its start, and the other lines are read."""
    path = tmp_path / "f"
    path.write_bytes(b"a\n" + b"b" * 500_000 + b"\nc\n")
    limits = LineLimits(chunk_bytes=100, line_bytes=1000)
    chunks = list(read_lines(str(path), "p", 0, path.stat().st_size, limits))
    raw = [line for chunk in chunks for line in chunk.raw.to_pylist()]  # type: ignore[union-attr]
    bad = [record for chunk in chunks for record in chunk.bad]
    assert raw == [b"a\n", b"c\n"]
    assert [(record.offset, set(record.raw)) for record in bad] == [(2, {ord("b")})]
    assert len(bad[0].raw) <= 4096
    assert "longer than 1000 bytes" in bad[0].reason


def test_chunks_share_the_block_that_was_read(tmp_path: Path) -> None:
    """Lines are not copied: the arrays of a block share its buffer."""
    path = tmp_path / "f"
    path.write_bytes(b"".join(b'{"n":%d}\n' % i for i in range(1000)))
    chunks = list(read_lines(str(path), "p", 0, path.stat().st_size, LineLimits(chunk_lines=400)))
    assert [len(chunk.offsets) for chunk in chunks] == [400, 400, 200]
    assert len({chunk.raw.buffers()[2].address for chunk in chunks}) == 1  # type: ignore[union-attr]


def test_a_missing_file_raises(tmp_path: Path) -> None:
    """The caller decides what a missing file means."""
    with pytest.raises(FileNotFoundError):
        list(read_lines(str(tmp_path / "none"), "p", 0, 10))
