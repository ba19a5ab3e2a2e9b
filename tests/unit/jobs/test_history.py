"""Histories: the stories of commands in the receipts of a job, and waiting for one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from control_checkpoint import ENTRY, make_checkpoint, receipts, write_receipts

import penstock.jobs.history
from penstock.control.receipts import Receipt
from penstock.errors import CheckpointError
from penstock.jobs.history import NewReceipts, Wanted, await_end, newest_stories, story_of
from penstock.jobs.receipts import kept_receipts, plain, receipts_in


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
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, in order."""
    names: list[str] = []

    def read(checkpoint: Path, name: str, command_id: str | None = None) -> list[Receipt]:
        names.append(name)
        return receipts_in(checkpoint, name, command_id)

    monkeypatch.setattr(penstock.jobs.history, "receipts_in", read)
    return names


def test_the_newest_stories_are_read_from_the_end(checkpoint: Path, read_files: list[str]) -> None:
    """Oldest first, and no file more than is needed."""
    stories = newest_stories(checkpoint, everything, 3)
    assert [story.last.id for story in stories] == ["b8", "a9", "b9"]
    assert read_files == ["part-0000000009.jsonl", "part-0000000008.jsonl"]
    assert len(newest_stories(checkpoint, everything, 100)) == 20
    assert newest_stories(checkpoint.parent, everything, 5) == []


def test_stories_are_chosen_by_step_and_kind(checkpoint: Path) -> None:
    """A command to the whole job belongs to the steps that take its kind from it."""

    def ids(step: str | None, kind: str | None = None) -> list[str]:
        stories = newest_stories(checkpoint, Wanted(ENTRY, step, kind), 3)
        return [story.last.id for story in stories]

    assert ids("heat") == ["b8", "a9", "b9"]
    assert ids("names") == []
    assert ids("pairs") == ["b7", "b8", "b9"]
    assert ids("heat", "set") == ["a7", "a8", "a9"]
    assert ids(None, "pause") == ["b7", "b8", "b9"]
    assert ids("hea") == []


def test_a_story_has_all_receipts_of_its_command(checkpoint: Path, read_files: list[str]) -> None:
    """In order; what is only alike is not it."""
    story = story_of(checkpoint, "a7")
    assert story is not None
    assert [receipt.status for receipt in story.receipts] == ["ACCEPTED", "VALIDATED", "APPLIED"]
    assert len(read_files) == 3
    assert plain(story.last)["details"] == {"x": 1}
    assert plain(story.last)["reason"] == ""
    assert story_of(checkpoint, "a") is None
    assert story_of(checkpoint, "set") is None


def test_an_id_that_came_twice_has_its_newest_story(checkpoint: Path) -> None:
    """Also when both were in one micro-batch, as commands for two steps may be."""
    write_receipts(
        checkpoint,
        10,
        [*receipts("a7", "REJECTED", 10), *receipts("a7", "DEGRADED", 10, target="names/x")],
    )
    story = story_of(checkpoint, "a7")
    assert story is not None
    assert (story.last.status, story.last.target, len(story.receipts)) == ("DEGRADED", "names/x", 3)
    assert [s.last.status for s in newest_stories(checkpoint, everything, 2)] == ["REJECTED", "DEGRADED"]


def test_damaged_receipts_are_an_error_that_names_the_file(checkpoint: Path) -> None:
    """Nothing is passed over."""
    path = kept_receipts(checkpoint) / "part-0000000011.jsonl"
    path.write_text('{"id": "a')
    with pytest.raises(CheckpointError) as error:
        newest_stories(checkpoint, everything, 1)
    assert str(path) in str(error.value)


def test_waiting_reads_each_new_file_once_and_no_old_one(checkpoint: Path, read_files: list[str]) -> None:
    """While another thread writes; the receipts are told as they come."""
    new = NewReceipts(checkpoint)
    told: list[str] = []

    def write() -> None:
        for batch in range(10, 30):
            write_receipts(checkpoint, batch, receipts(f"a{batch}", "APPLIED", batch))
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    final = await_end(new, "a29", 30, lambda receipt: told.append(receipt.status))
    writer.join()
    assert final is not None
    assert (final.id, final.status) == ("a29", "APPLIED")
    assert told == ["ACCEPTED", "VALIDATED", "APPLIED"]
    assert read_files == [f"part-{batch:010}.jsonl" for batch in range(10, 30)]


def test_waiting_does_not_list_a_folder_that_did_not_change(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since it may hold hundreds of thousands of files; once in a while it does, to be sure."""
    new = NewReceipts(checkpoint)
    listed: list[str] = []
    real = penstock.jobs.history.receipt_files

    def files(checkpoint: Path, after: str = "") -> list[str]:
        listed.append(after)
        return real(checkpoint, after)

    monkeypatch.setattr(penstock.jobs.history, "receipt_files", files)
    assert await_end(new, "x", 0.8, lambda _: None) is None
    assert len(listed) == 2


def test_waiting_ends_in_time(checkpoint: Path) -> None:
    """Without a final receipt it is None, also when the folder of receipts is not there yet."""
    before = time.monotonic()
    assert await_end(NewReceipts(checkpoint), "a9", 0.2, lambda _: None) is None
    assert await_end(NewReceipts(checkpoint.parent), "a9", 0, lambda _: None, look_back=True) is None
    assert 0.2 <= time.monotonic() - before < 5


def test_an_id_that_was_seen_before_has_its_old_receipts(checkpoint: Path) -> None:
    """Since the job writes no others for it; waiting finds them when it looks back, and only then."""
    told: list[str] = []
    final = await_end(NewReceipts(checkpoint), "a0", 30, lambda r: told.append(r.status), look_back=True)
    assert final is not None
    assert (final.id, final.batch) == ("a0", 0)
    assert told == ["ACCEPTED", "VALIDATED", "APPLIED"]
