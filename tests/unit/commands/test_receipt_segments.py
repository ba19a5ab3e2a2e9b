"""Receipt segments: each micro-batch's receipts are stored once, despite kills, in files of bounded number
and size.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from control_checkpoint import append_lines, make_checkpoint, receipts
from hypothesis import given
from hypothesis import strategies as st

from penstock.commands.receipt_history import find_history
from penstock.commands.receipt_segments import NewReceipts, SegmentWriter, kept_receipts, segment_names
from penstock.errors import CheckpointError


def lines(batch: int, *ids: str) -> bytes:
    found = [receipt for command_id in ids for receipt in receipts(command_id, "APPLIED", batch)]
    return msgspec.json.Encoder().encode_lines(found)


def final_receipts(checkpoint: Path) -> list[tuple[int, str]]:
    """Return the stored final receipts, in order."""
    return [
        (receipt.batch, receipt.id)
        for receipt in NewReceipts(checkpoint, from_start=True).read()
        if receipt.status == "APPLIED"
    ]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "checkpoint")


def test_receipts_are_written_once(checkpoint: Path) -> None:
    """This holds also when the same micro-batch is repeated, in the same run or another."""
    writer = SegmentWriter(checkpoint)
    for batch in (0, 3, 3, 4):
        append_lines(writer, batch, lines(batch, f"a{batch}", f"b{batch}"))
    again = SegmentWriter(checkpoint)
    for batch in (3, 4, 7):
        append_lines(again, batch, lines(batch, f"a{batch}", f"b{batch}"))
    assert final_receipts(checkpoint) == [
        (batch, f"{name}{batch}") for batch in (0, 3, 4, 7) for name in "ab"
    ]


@given(cut=st.integers(0, 10_000))
def test_a_kill_at_any_byte_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """The replayed micro-batch writes only the missing receipts."""
    checkpoint = tmp_path_factory.mktemp("kill")
    writer = SegmentWriter(checkpoint)
    append_lines(writer, 0, lines(0, "a"))
    path = kept_receipts(checkpoint) / "0000000001.jsonl"
    durable = path.stat().st_size
    append_lines(writer, 1, lines(1, "b", "c", "d"))
    whole = path.read_bytes()
    os.truncate(path, durable + cut % (len(whole) - durable + 1))
    reader = NewReceipts(checkpoint, from_start=True)
    before = reader.read()
    append_lines(SegmentWriter(checkpoint), 1, lines(1, "b", "c", "d"))
    assert path.read_bytes() == whole
    assert [receipt.id for receipt in before + reader.read()] == [c for c in "abcd" for _ in range(3)]


def test_a_handler_that_answers_otherwise_in_a_replay_is_not_told_twice(checkpoint: Path) -> None:
    """The receipt that was written first stays."""
    append_lines(SegmentWriter(checkpoint), 0, lines(0, "a"))
    first = (kept_receipts(checkpoint) / "0000000001.jsonl").read_bytes()
    append_lines(SegmentWriter(checkpoint), 0, lines(0, "a").replace(b"ann", b"ben") + lines(0, "b"))
    assert (kept_receipts(checkpoint) / "0000000001.jsonl").read_bytes() == first + lines(0, "b")


def test_the_oldest_receipts_go_beyond_the_bound(checkpoint: Path) -> None:
    """The newest receipts stay, in few files; each full file has an index."""
    writer = SegmentWriter(checkpoint, segment_bytes=5_000, max_bytes=40_000)
    for batch in range(500):
        append_lines(writer, batch, lines(batch, f"c{batch}"))
    sizes = {path.name: path.stat().st_size for path in kept_receipts(checkpoint).iterdir()}
    assert 30_000 < sum(size for name, size in sizes.items() if name.endswith(".jsonl")) <= 40_000
    assert {name.replace(".ids", ".jsonl") for name in sizes if name.endswith(".ids")} == set(
        segment_names(checkpoint)[:-1]
    )
    kept = final_receipts(checkpoint)
    assert kept == [(batch, f"c{batch}") for batch in range(kept[0][0], 500)]
    assert find_history(checkpoint, "c0") is None
    assert find_history(checkpoint, kept[0][1]) is not None


def test_an_index_that_is_missing_is_made_again(checkpoint: Path) -> None:
    """An id is found without its index as well."""
    writer = SegmentWriter(checkpoint, segment_bytes=1_000)
    for batch in range(10):
        append_lines(writer, batch, lines(batch, f"c{batch}"))
    indexes = {path: path.read_bytes() for path in kept_receipts(checkpoint).glob("*.ids")}
    for path in indexes:
        path.unlink()
    assert find_history(checkpoint, "c0") is not None
    (kept_receipts(checkpoint) / "0000000099.ids").touch()
    SegmentWriter(checkpoint).open()
    assert {path: path.read_bytes() for path in kept_receipts(checkpoint).glob("*.ids")} == indexes


def test_an_unknown_id_is_answered_from_the_indexes(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among 50,000 commands this takes well under 200 ms; only the newest segment is read."""
    writer = SegmentWriter(checkpoint)
    for batch in range(50):
        append_lines(writer, batch, lines(batch, *(f"c{batch}-{number}" for number in range(1000))))
    opened: list[str] = []
    real = Path.open

    def counted(path: Path, *arguments: object, **more: object) -> object:
        opened.append(path.name)
        return real(path, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", counted)
    begin = time.process_time()
    assert find_history(checkpoint, "nobody") is None
    assert time.process_time() - begin < 0.2
    assert opened == segment_names(checkpoint)[-1:]
    assert find_history(checkpoint, "c17-3") is not None


def test_a_full_disk_leaves_no_part_of_a_micro_batch(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is space again, the same receipts can be written."""
    writer = SegmentWriter(checkpoint)
    append_lines(writer, 0, lines(0, "a"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", _full)
        with pytest.raises(OSError, match="No space"):
            append_lines(writer, 1, lines(1, "b"))
    assert final_receipts(checkpoint) == [(0, "a")]
    append_lines(writer, 1, lines(1, "b"))
    assert final_receipts(checkpoint) == [(0, "a"), (1, "b")]


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_damaged_receipts_are_named(checkpoint: Path) -> None:
    """The error names the file and the remedy."""
    append_lines(SegmentWriter(checkpoint), 0, lines(0, "a"))
    path = kept_receipts(checkpoint) / "0000000001.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(CheckpointError, match=f"{path} cannot be read: .* Restore the file"):
        SegmentWriter(checkpoint).open()
