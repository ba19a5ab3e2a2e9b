"""Pages of keys: each key once, in a fixed order, for any number of slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stored_jobs import JobWith, StepWith, StoredJob

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.errors import CheckpointError, UnknownIdError
from penstock.savepoints import snapshot_capture
from penstock.savepoints.state_pages import KeyPage, KeysWanted, StoredKey, key_page

SESSION: Any = None


def stored(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    key_type: tuple[Any, ...] = (str,),
    rows: dict[Any, dict[str, Any]] | None = None,
) -> tuple[Checkpoint, StoredJob]:
    """Return a checkpoint after a micro-batch in which a step stored 50 keys."""
    states = {"count": ps.ValueState(int), "names": ps.ListState(str)}
    held = rows or {f"room {n}": {"count": n, "names": ["a"] * (n % 3)} for n in range(50)}
    job = StoredJob(JobWith([StepWith(states, key_type, [held, {}])], 8), slots)
    checkpoint = Checkpoint.open(str(folder))
    checkpoint.begin(Lineage("abc", "drawn", 8, slots, ("readings-0", "commands")))
    (folder / "commits").mkdir()
    (folder / "commits" / "0").touch()

    def read_slots(*arguments: Any) -> Any:
        _, _, _, node, reader = arguments
        return set(range(slots)), job.read(node, reader)

    monkeypatch.setattr(snapshot_capture, "read_slots", read_slots)
    return checkpoint, job


def pages(checkpoint: Checkpoint, job: StoredJob, most: int, contains: str = "") -> list[KeyPage]:
    found, after = [], None
    while True:
        wanted = KeysWanted(step="step 0", after=after, limit=most, contains=contains)
        found.append(key_page(SESSION, checkpoint, job.state, wanted))
        after = found[-1].next
        if after is None:
            return found


@pytest.mark.parametrize("most", [1, 7, 50, 1000])
def test_pages_are_all_keys(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes once, in the order of key groups, the same from one slot and from several."""
    orders = []
    for slots in (1, 3):
        checkpoint, job = stored(tmp_path / str(slots), monkeypatch, slots)
        found = [one for page in pages(checkpoint, job, most) for one in page.items]
        orders.append([one.key for one in found])
        assert sorted(orders[-1]) == sorted(f"room {n}" for n in range(50))
        assert [one.key_group for one in found] == sorted(one.key_group for one in found)
        for one in found:
            number = int(one.key.split()[1])
            names = ["a"] * (number % 3) or None
            assert one.values == {"count": number, "names": names}
    assert orders[0] == orders[1]


def test_keys_are_found_by_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is a part of their JSON; the next page continues after the last match."""
    checkpoint, job = stored(tmp_path, monkeypatch, 2)
    found = pages(checkpoint, job, 3, contains="room 4")
    assert [len(page.items) for page in found] == [3, 3, 3, 2]
    assert {one.key for page in found for one in page.items} == {"room 4", *(f"room 4{n}" for n in range(10))}
    assert pages(checkpoint, job, 3, contains="attic")[0] == KeyPage(batch=0, items=(), next=None)


def test_one_key_is_found_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of several fields is a JSON list; a missing key gives no result."""
    rows = {(1, "b"): {"count": 5}, (2, "c"): {"count": 6}}
    checkpoint, job = stored(tmp_path, monkeypatch, 3, (int, str), rows)

    def one(text: str) -> tuple[StoredKey, ...]:
        return key_page(SESSION, checkpoint, job.state, KeysWanted(step="step 0", key=text)).items

    (found,) = one('[1, "b"]')
    assert (found.key, found.values) == ([1, "b"], {"count": 5, "names": None})
    assert one('[3, "b"]') == ()
    with pytest.raises(CheckpointError, match="is not a key of the step"):
        one("attic")


def test_what_is_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is shown instead, so that an answer is bounded."""
    rows = {"small": {"count": 1}, "large": {"names": ["x" * 1000]}}
    checkpoint, job = stored(tmp_path, monkeypatch, 2, rows=rows)
    wanted = KeysWanted(step="step 0", max_bytes=500)
    found = {one.key: one for one in key_page(SESSION, checkpoint, job.state, wanted).items}
    assert found["small"].values == {"count": 1, "names": None}
    assert found["large"].values is None
    assert found["large"].bytes > 1000


@pytest.mark.parametrize(
    "after", ["", "1", "1.x", "x." + "0" * 32, "-1." + "0" * 32, "9" * 20 + "." + "0" * 32]
)
def test_a_wrong_place_is_told(after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown step is reported as well."""
    checkpoint, job = stored(tmp_path, monkeypatch, 1)
    with pytest.raises(CheckpointError, match="not the `next` of a page"):
        key_page(SESSION, checkpoint, job.state, KeysWanted(step="step 0", after=after))
    with pytest.raises(UnknownIdError, match="its steps are step 0"):
        key_page(SESSION, checkpoint, job.state, KeysWanted(step="other"))
