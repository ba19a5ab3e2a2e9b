"""A dump in an object store equals one in a folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from s3_server import STRANGER, STRANGER_SECRET, S3Server
from snapshot_support import LOG, ROOMS, SETTINGS, setting, write_snapshot

from penstock.errors import AlreadyThereError, ExternalSystemError, NotThereError
from penstock.snapshots.differences import diff
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_reader import accept, read_manifest, read_table, verify
from penstock.snapshots.snapshot_writer import TableInfo
from penstock.snapshots.stores import open_store


@pytest.fixture
def bucket(s3_environment: pytest.MonkeyPatch, s3: S3Server) -> str:
    """Return the URI of a bucket that the environment gives access to."""
    s3.put("snapshots", "there", b"")
    return "s3://snapshots"


def test_a_dump_is_written_and_verified(bucket: str, tmp_path: Path) -> None:
    """It has the same files as in a folder, with any table names, and damage is detected."""
    odd = TableInfo("Ümläut/100% a.b", "s", "state", SETTINGS.schema)
    tables = [(SETTINGS, ROOMS), (odd, ROOMS)]
    uri = f"{bucket}/dumps/1"
    with pytest.raises(NotThereError, match="There is no snapshot in 's3://snapshots/dumps/1'"):
        read_manifest(open_store(uri))
    written = write_snapshot(uri, tables)
    assert write_snapshot(str(tmp_path / "d"), tables) == written
    store = open_store(uri)
    assert store.list() == open_store(str(tmp_path / "d")).list()
    found = verify(uri)
    assert found.sound, found.defects
    assert found.rows == 2 * len(ROOMS)
    assert sum(len(batch) for batch in read_table(store, read_manifest(store), odd.name)) == len(ROOMS)
    store.replace("thermostat/setting/part-00000.csv", b"x")
    store.delete("offsets/readings.bin")
    assert [defect.path for defect in verify(uri).defects] == [
        "offsets/readings.bin",
        "thermostat/setting/part-00000.csv",
    ]


def test_of_two_writers_one_wins(bucket: str) -> None:
    """They write at once, repeatedly; the winner's content stays."""
    for turn in range(5):
        uri = f"{bucket}/race/{turn}"
        won: list[Manifest] = []
        lost: list[AlreadyThereError] = []
        barrier = threading.Barrier(2)

        def write(
            name: str, uri: str = uri, won: list[Manifest] = won, lost: list[AlreadyThereError] = lost
        ) -> None:
            barrier.wait()  # noqa: B023
            try:
                won.append(write_snapshot(uri, name=name))
            except AlreadyThereError as e:
                lost.append(e)

        threads = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 1)
        assert read_manifest(open_store(uri)) == won[0]
        assert verify(uri).sound


def test_a_large_file_is_created_once(bucket: str) -> None:
    """It is written in one request, so that it is atomic."""
    store = open_store(f"{bucket}/large")
    data = os.urandom(24 << 20)
    store.create("x", data)
    with pytest.raises(AlreadyThereError, match="'x' exists in 's3://snapshots/large'"):
        store.create("x", b"")
    assert store.size("x") == len(data)
    assert store.read("x") == data


def test_a_folder_and_an_object_store_are_compared(bucket: str, tmp_path: Path) -> None:
    """An edited dump in the store is accepted."""
    here, there = str(tmp_path / "d"), f"{bucket}/compared"
    write_snapshot(here, file_format="arrow")
    write_snapshot(there, file_format="jsonl")
    assert diff(here, there).same
    store = open_store(there)
    part = "thermostat/setting/part-00000.jsonl"
    store.replace(part, store.read(part).replace(b"room-00", b"attic"))
    assert accept(there).table("thermostat/setting").rows == len(ROOMS)
    assert store.exists("manifest.json.before")
    assert verify(there).sound
    events, settings = diff(here, there).tables
    assert (settings.added, settings.removed, settings.changed) == (1, 1, 0)
    assert settings.samples[0].after == {**setting("attic", 20.0), "key": "attic"}
    assert events.unchanged == len(LOG)


def test_what_is_wrong_is_told(bucket: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing bucket and missing rights are reported, without secrets."""
    with pytest.raises(ExternalSystemError, match="cannot be read: the bucket 'nowhere' does not exist"):
        read_manifest(open_store("s3://nowhere/x"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", STRANGER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", STRANGER_SECRET)
    with pytest.raises(
        ExternalSystemError, match=r"cannot be written: access is denied \(AccessDenied\)"
    ) as caught:
        write_snapshot(f"{bucket}/denied")
    assert STRANGER_SECRET not in repr(caught.value)
