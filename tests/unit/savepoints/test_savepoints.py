"""Savepoints: ids, places, listing and deletion."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest
from crashes import Crash, crashes
from rooms_job import snapshot

from penstock.checkpoints.stored_home import note_home
from penstock.errors import NotThereError
from penstock.savepoints.savepoints import dispose, list_savepoints, new_id, place_of, savepoints_root
from penstock.snapshots.manifest import MANIFEST
from penstock.snapshots.snapshot_reader import verify

NOON = dt.datetime(2026, 1, 2, 12, 0, 5, tzinfo=dt.UTC)


def test_ids_sort_by_time_and_do_not_repeat() -> None:
    """This holds within a second, too."""
    ids = {new_id(NOON) for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(r"sp-20260102-120005-[0-9a-f]{6}", found) for found in ids)
    assert max(ids) < new_id(NOON + dt.timedelta(seconds=1))


def test_savepoints_stand_beside_their_checkpoint(tmp_path: Path) -> None:
    """So they outlive the checkpoint; this includes object stores."""
    assert savepoints_root(tmp_path / "cp") == str(tmp_path / "cp.savepoints")
    note_home(tmp_path, "s3://bucket/rooms")
    assert savepoints_root(tmp_path) == "s3://bucket/rooms.savepoints"


def test_finished_savepoints_are_listed_oldest_first(tmp_path: Path) -> None:
    """Folders without a manifest, with a damaged one, or deeper are not listed."""
    for name in ("b", "a", "c"):
        snapshot(tmp_path / name, "arrow")
    (tmp_path / "b" / MANIFEST).unlink()
    (tmp_path / "c" / MANIFEST).write_text("{}")
    snapshot(tmp_path / "deeper" / "d", "arrow")
    assert [place for place, _ in list_savepoints(str(tmp_path))] == [f"{tmp_path}/a"]
    assert [m.id for _, m in list_savepoints(f"{tmp_path}/")] == ["s-1"]
    assert list(list_savepoints(str(tmp_path / "nothing"))) == []


def test_a_savepoint_is_named_by_its_id_or_its_place(tmp_path: Path) -> None:
    """The error for an unknown id lists the known ones."""
    checkpoint = tmp_path / "cp"
    with pytest.raises(NotThereError) as caught:
        place_of("sp", checkpoint)
    assert str(caught.value) == (
        f"There is no savepoint 'sp' in {tmp_path / 'cp.savepoints'}; it has none. Name one of them, or the place of "
        "another."
    )
    snapshot(tmp_path / "cp.savepoints" / "s-1", "arrow")
    assert place_of("s-1", checkpoint) == str(tmp_path / "cp.savepoints" / "s-1")
    assert place_of(f"{tmp_path}/there", checkpoint) == f"{tmp_path}/there"
    assert place_of("s3://bucket/sp", checkpoint) == "s3://bucket/sp"
    with pytest.raises(NotThereError, match="it has s-1"):
        place_of("s-2", checkpoint)


def test_a_savepoint_is_deleted_whole(tmp_path: Path) -> None:
    """Other folders are not deleted."""
    snapshot(tmp_path / "sp", "arrow")
    files = [path for path in (tmp_path / "sp").rglob("*") if path.is_file()]
    assert dispose(str(tmp_path / "sp")) == len(files)
    assert not [path for path in (tmp_path / "sp").rglob("*") if path.is_file()]
    with pytest.raises(NotThereError, match="There is no snapshot in"):
        dispose(str(tmp_path / "sp"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(NotThereError):
        dispose(str(tmp_path / "mine"))
    assert (tmp_path / "mine" / "file").exists()


def test_a_deletion_that_is_killed_leaves_no_savepoint(tmp_path: Path) -> None:
    """The manifest is deleted first, so the rest does not look like a savepoint."""
    for number in range(5):
        place = tmp_path / f"sp-{number}"
        snapshot(place, "arrow")
        with pytest.raises(Crash), crashes(number):
            dispose(str(place))
        assert (place / MANIFEST).exists() == (number == 0)
        if number:
            assert not verify(str(place)).sound
            assert f"{place}" not in [found for found, _ in list_savepoints(str(tmp_path))]
