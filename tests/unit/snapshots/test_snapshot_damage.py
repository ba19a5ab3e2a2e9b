"""Any damage to any file is detected before a row of it is used."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from snapshot_support import write_snapshot

from penstock.errors import DamagedSnapshotError, NotThereError, SnapshotError
from penstock.snapshots import manifest as manifests
from penstock.snapshots.snapshot_reader import read_manifest, read_table, verify
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import FORMATS

TIMES = 80


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_damage_is_found(tmp_path: Path, file_format: str) -> None:
    """A flipped bit, or a file cut off, anywhere: 80 times."""
    chance = random.Random(file_format)
    uri = str(tmp_path)
    write_snapshot(uri, file_format=file_format)
    store = open_store(uri)
    files = store.list()
    for number in range(TIMES):
        path = tmp_path / files[number % len(files)]
        whole = path.read_bytes()
        data = bytearray(whole)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        found = verify(uri)
        assert not found.sound, (path, number)
        assert found.defects[0].path == files[number % len(files)]
        if path.name == "manifest.json":
            with pytest.raises(DamagedSnapshotError, match="its checksum does not match"):
                read_manifest(store)
        path.write_bytes(whole)
    assert verify(uri).sound


def test_every_bit_of_the_manifest_counts(tmp_path: Path) -> None:
    """Also those of its white space and of the checksum."""
    write_snapshot(str(tmp_path))
    whole = (tmp_path / "manifest.json").read_bytes()
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        with pytest.raises(DamagedSnapshotError):
            manifests.from_bytes(bytes(data), "x")
        with pytest.raises(DamagedSnapshotError):
            manifests.from_bytes(whole[:place], "x")


def test_nothing_of_a_damaged_file_is_read(tmp_path: Path) -> None:
    """The rows of the file before it are."""
    write_snapshot(str(tmp_path))
    damaged = tmp_path / "thermostat" / "setting" / "part-00001.csv"
    damaged.write_bytes(damaged.read_bytes() + b"room-99,1,heat,\n")
    store = open_store(str(tmp_path))
    batches = read_table(store, read_manifest(store), "thermostat/setting")
    first = next(batches)
    with pytest.raises(DamagedSnapshotError, match=r"has .* bytes instead of"):
        next(batches)
    assert first.column("key").to_pylist() == [f"room-{number:02}" for number in range(0, 20, 2)]


def test_missing_and_unlisted_files_are_defects(tmp_path: Path) -> None:
    """All are listed, not only the first."""
    write_snapshot(str(tmp_path))
    folder = tmp_path / "thermostat" / "setting"
    (folder / "part-00001.csv").rename(folder / "part-00007.csv")
    (tmp_path / "offsets" / "readings.bin").unlink()
    found = {(defect.path, defect.problem) for defect in verify(str(tmp_path)).defects}
    assert found == {
        ("thermostat/setting/part-00001.csv", "is missing"),
        ("thermostat/setting/part-00007.csv", "is not listed in the manifest"),
        ("offsets/readings.bin", "is missing"),
    }


def test_a_newer_snapshot_is_refused(tmp_path: Path) -> None:
    """With what to do."""
    whole = manifests.to_bytes(write_snapshot(str(tmp_path)))
    body = whole[: whole.index(b',\n  "checksum"')].replace(b'"version": 1', b'"version": 2')

    newer = body + b',\n  "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'
    with pytest.raises(
        SnapshotError, match=r"has version 2 of the format, and this penstock knows up to 1\. Use"
    ):
        manifests.from_bytes(newer, "x")


def test_no_snapshot_is_told(tmp_path: Path) -> None:
    """By verify as well."""
    with pytest.raises(NotThereError, match=r"'manifest.json', which is written last, is missing"):
        read_manifest(open_store(str(tmp_path)))
    assert "There is no snapshot" in verify(str(tmp_path)).defects[0].problem
