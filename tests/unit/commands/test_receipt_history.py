"""Histories of commands, read from a job's receipts, and waiting for one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest
from control_checkpoint import ENTRY, append_lines, make_checkpoint, receipts, write_receipts

import penstock.commands.receipt_segments
from penstock.commands.job_receipts import plain
from penstock.commands.receipt_history import (
    CommandFilter,
    await_end,
    find_history,
    find_newest_histories,
)
from penstock.commands.receipt_segments import NewReceipts, SegmentWriter, kept_receipts
from penstock.errors import CheckpointError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with ten micro-batches of two commands each."""
    made = make_checkpoint(tmp_path / "checkpoint")
    for batch in range(10):
        first = receipts(f"a{batch}", "APPLIED", batch, keys=1, key_groups=1, details='{"x":1}')
        second = receipts(f"b{batch}", "REJECTED", batch, kind="pause", target="*", reason="no")
        write_receipts(made, batch, [*first, *second])
    return made


def everything(_: object) -> bool:
    return True


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Collects the receipts that are decoded, in order."""
    lines: list[bytes] = []
    real = penstock.commands.receipt_segments._decoder

    class Counting:
        def decode(self, line: bytes) -> object:
            lines.append(line)
            return real.decode(line)

    monkeypatch.setattr(penstock.commands.receipt_segments, "_decoder", Counting())
    return lines


def test_the_newest_histories_are_read_from_the_end(checkpoint: Path, decoded: list[bytes]) -> None:
    """They come oldest first, and no more receipts are decoded than needed."""
    histories = find_newest_histories(checkpoint, everything, 3)
    assert [history.last.id for history in histories] == ["b8", "a9", "b9"]
    assert len(decoded) == 2 + 3 + 2
    assert len(find_newest_histories(checkpoint, everything, 100)) == 20
    assert find_newest_histories(checkpoint.parent, everything, 5) == []


def test_stories_are_chosen_by_step_and_kind(checkpoint: Path) -> None:
    """A command to the whole job belongs to every step that takes its kind."""

    def ids(step: str | None, kind: str | None = None) -> list[str]:
        histories = find_newest_histories(checkpoint, CommandFilter(ENTRY, step, kind), 3)
        return [history.last.id for history in histories]

    assert ids("heat") == ["b8", "a9", "b9"]
    assert ids("names") == []
    assert ids("pairs") == ["b7", "b8", "b9"]
    assert ids("heat", "set") == ["a7", "a8", "a9"]
    assert ids(None, "pause") == ["b7", "b8", "b9"]
    assert ids("hea") == []


def test_a_story_has_all_receipts_of_its_command(checkpoint: Path, decoded: list[bytes]) -> None:
    """The receipts are in order; those of similar ids are left out."""
    history = find_history(checkpoint, "a7")
    assert history is not None
    assert [receipt.status for receipt in history.receipts] == ["ACCEPTED", "VALIDATED", "APPLIED"]
    assert len(decoded) == 3
    assert plain(history.last)["details"] == {"x": 1}
    assert plain(history.last)["reason"] == ""
    assert find_history(checkpoint, "a") is None
    assert find_history(checkpoint, "set") is None


def test_an_id_that_came_twice_has_its_newest_story(checkpoint: Path) -> None:
    """This holds also when both were in one micro-batch, as commands for two steps may be."""
    write_receipts(
        checkpoint,
        10,
        [*receipts("a7", "REJECTED", 10), *receipts("a7", "DEGRADED", 10, target="names/x")],
    )
    history = find_history(checkpoint, "a7")
    assert history is not None
    assert (history.last.status, history.last.target, len(history.receipts)) == ("DEGRADED", "names/x", 3)
    assert [s.last.status for s in find_newest_histories(checkpoint, everything, 2)] == [
        "REJECTED",
        "DEGRADED",
    ]


@pytest.mark.parametrize("far", [False, True], ids=["in one segment", "in segments far apart"])
def test_a_command_that_was_undone_has_that_at_its_end(checkpoint: Path, far: bool) -> None:
    """The undoing is found wherever its receipts are; other histories do not change."""
    (undone,) = receipts("a9", "DEGRADED", 11, reason="too many alarms")[-1:]
    for batch, some in ((10, receipts("c", "APPLIED", 10)), (11, [*receipts("d", "APPLIED", 11), undone])):
        writer = SegmentWriter(checkpoint, segment_bytes=1 if far else 1 << 20)
        writer.open()
        append_lines(writer, batch, msgspec.json.Encoder().encode_lines(some))
    wanted = ["ACCEPTED", "VALIDATED", "APPLIED", "DEGRADED"]
    history = find_history(checkpoint, "a9")
    assert history is not None
    assert [one.status for one in history.receipts] == wanted
    newest = find_newest_histories(checkpoint, everything, 4)
    assert [found.receipts[0].id for found in newest] == ["a9", "b9", "c", "d"]
    assert newest[0] == history
    assert [len(found.receipts) for found in newest[1:]] == [2, 3, 3]


def test_damaged_receipts_are_an_error_that_names_the_file(checkpoint: Path) -> None:
    """No damaged receipt is skipped silently."""
    path = kept_receipts(checkpoint) / "0000000001.jsonl"
    path.write_text('{"id": "a\n')
    with pytest.raises(CheckpointError) as error:
        find_newest_histories(checkpoint, everything, 1)
    assert str(path) in str(error.value)


def test_waiting_reads_each_new_line_once_and_no_old_one(checkpoint: Path, decoded: list[bytes]) -> None:
    """Another thread writes meanwhile; receipts are reported as they arrive, also those of a later segment."""
    new = NewReceipts(checkpoint)
    told: list[str] = []
    writer = SegmentWriter(checkpoint, segment_bytes=1000)
    ended = threading.Event()

    def write() -> None:
        for batch in range(10, 30):
            if batch == 12:
                ended.wait(30)  # else one read might return the final receipt together with later ones
            lines = msgspec.json.Encoder().encode_lines(receipts(f"a{batch % 2}x", "APPLIED", batch))
            append_lines(writer, batch, lines)
            time.sleep(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    final = await_end(new, "a1x", 30, lambda receipt: told.append(receipt.status))
    ended.set()
    thread.join()
    assert final is not None
    assert (final.id, final.batch) == ("a1x", 11)
    assert told == ["ACCEPTED", "VALIDATED", "APPLIED"]
    rest = new.read("a1x")
    assert [receipt.batch for receipt in rest if receipt.status == "APPLIED"] == list(range(13, 30, 2))
    assert len(decoded) == len(set(decoded)) == 30
    assert len(list(kept_receipts(checkpoint).glob("*.jsonl"))) > 3


def test_waiting_ends_in_time(checkpoint: Path) -> None:
    """Without a final receipt by the timeout the result is None, also when the receipts folder does not exist
    yet.
    """
    before = time.monotonic()
    assert await_end(NewReceipts(checkpoint), "a9", 0.2, lambda _: None) is None
    assert await_end(NewReceipts(checkpoint.parent), "a9", 0, lambda _: None, look_back=True) is None
    assert 0.2 <= time.monotonic() - before < 5


def test_an_id_that_was_seen_before_has_its_old_receipts(checkpoint: Path) -> None:
    """The job writes no new receipts for a known id, so waiting finds the old ones, but only when it looks
    back.
    """
    told: list[str] = []
    final = await_end(NewReceipts(checkpoint), "a0", 30, lambda r: told.append(r.status), look_back=True)
    assert final is not None
    assert (final.id, final.batch) == ("a0", 0)
    assert told == ["ACCEPTED", "VALIDATED", "APPLIED"]
