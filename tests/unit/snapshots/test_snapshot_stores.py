"""Stores write whole files once, and say what is wrong with a place."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from threads_at_once import call_at_once

from penstock.base.durable import NO_HARD_LINKS
from penstock.errors import AlreadyThereError, NotThereError, SnapshotError
from penstock.snapshots.stores import open_store


def test_files_are_written_listed_read_and_deleted(tmp_path: Path) -> None:
    """In a folder that is made when it is needed."""
    store = open_store(f"file://{tmp_path}/a%20b")
    assert store.list() == []
    store.create("x/y/z", b"1")
    store.create("b", pa.py_buffer(b"22"))
    store.create("empty", b"")
    (tmp_path / "a b" / "x" / ".hidden.tmp").touch()
    assert store.list() == ["b", "empty", "x/y/z"]
    assert store.list("x/") == ["x/y/z"]
    assert store.read("b") == store.open_input("b").read() == b"22"
    assert store.open_input("empty").read() == b""
    assert store.size("b") == 2
    assert store.exists("b")
    assert not store.exists("x")
    store.replace("b", b"3")
    assert store.read("b") == b"3"
    store.delete("b")
    store.delete("b")
    assert not store.exists("b")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Whoever comes second is told, and of many at once one wins; with and without hard links."""
    if not links:

        def refuse(*_: object) -> None:
            raise OSError(NO_HARD_LINKS[0], "no links")

        monkeypatch.setattr(os, "link", refuse)
    store = open_store(str(tmp_path))
    store.create("x", b"first")
    with pytest.raises(AlreadyThereError, match="'x' exists in"):
        store.create("x", b"second")
    assert store.read("x") == b"first"
    won = []

    def create(number: int) -> None:
        try:
            store.create("y", str(number).encode())
            won.append(number)
        except AlreadyThereError:
            pass

    call_at_once([partial(create, number) for number in range(8)])
    assert store.read("y") == str(won[0]).encode()
    assert len(won) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    """With the path and the place."""
    store = open_store(str(tmp_path / "none"))
    for ask in (store.read, store.size, store.open_input):
        with pytest.raises(NotThereError, match="There is no 'x' in"):
            ask("x")
    assert not store.exists("x")
    (tmp_path / "none").write_text("a file")
    with pytest.raises(SnapshotError, match="cannot be written"):
        store.create("x", b"")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a full disk."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    store = open_store(str(tmp_path))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SnapshotError, match="No space left on device"):
        store.create("x", b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "uri", ["", "ftp://host/x", "https://host/x", "file://elsewhere/x", "s3://", "s3://a@b/c"]
)
def test_a_place_that_cannot_hold_a_snapshot_is_refused(uri: str) -> None:
    """With what would."""
    with pytest.raises(SnapshotError, match="Give"):
        open_store(uri)


@pytest.mark.parametrize("path", ["", "/x", "x/", "a//b", "../x", "a/./b"])
def test_paths_stay_inside(tmp_path: Path, path: str) -> None:
    """Of the snapshot."""
    with pytest.raises(SnapshotError, match="is not a path inside a snapshot"):
        open_store(str(tmp_path)).create(path, b"")
