"""The seed of a job whose tasks share only the store: read from the objects named by the checkpoint's log."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from modelled_store import ModelledStore

from penstock.checkpoints import stored_pieces
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.checkpoints.stored_seed import StoredSeed
from penstock.errors import CheckpointError
from penstock.objects.object_stores import Place
from penstock.runtime.seed import SeedEntries, seed_folder, take_over

NODE = "step/rooms"
LARGE = bytes(range(256)) * (9 << 12)


class ReadStore(ModelledStore):
    """A store that records what tasks request."""

    place = Place("s3", "bucket", "rooms")

    def read(self, name: str) -> bytes:
        return self.objects[name]

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self.objects[name][start : start + length]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ReadStore:
    made = ReadStore()
    monkeypatch.setattr(stored_pieces, "ObjectFolder", lambda *_: made)
    return made


def seeded(store: ReadStore, folder: Path, entries: dict[int, dict[str, bytes]]) -> Any:
    """Return the seed as a task gets it, without access to the folder."""
    stored = StoredCheckpoint(store, "s3://bucket/rooms", folder)
    stored.take()
    for group, contents in entries.items():
        place = seed_folder(folder / "seed", NODE, group)
        place.mkdir(parents=True)
        for name, content in contents.items():
            SeedEntries(place).put(name, content)
    stored.save()
    return pickle.loads(pickle.dumps(StoredSeed(stored, "seed", {})))


def taken(seed: Any, group: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    class Found:
        def put(self, name: str, content: bytes) -> None:
            found[name] = bytes(content)

    take_over(seed.entries(NODE, group), Found())  # type: ignore[arg-type]
    return found


def test_a_slot_takes_over_what_is_in_the_store(tmp_path: Path, store: ReadStore) -> None:
    """Small entries come from the log, large ones from their own objects, and nothing from other slots."""
    entries = {0: {"head": b"1", "version/0/0": LARGE}, 4: {"head": b"2", "version/1/2": b""}}
    seed = seeded(store, tmp_path, entries)
    assert {name.partition("/")[0] for name in store.objects} == {"about.json", "log", "files"}
    assert {group: taken(seed, group) for group in entries} == entries
    assert taken(seed, 1) == {}


@pytest.mark.parametrize("place", ["log", "files"])
def test_changed_bytes_are_damage(tmp_path: Path, store: ReadStore, place: str) -> None:
    seed = seeded(store, tmp_path, {0: {"head": b"1", "version/0/0": LARGE}})
    (name,) = [name for name in store.objects if name.startswith(place) and name != "log/0000000000"]
    content = store.objects[name]
    store.objects[name] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(
        CheckpointError, match=rf"the object {place}/.* in s3://bucket/rooms has changed bytes"
    ):
        taken(seed, 0)


def test_a_seed_in_the_driver_reads_like_that_of_a_task(tmp_path: Path, store: ReadStore) -> None:
    stored = StoredCheckpoint(store, "s3://bucket/rooms", tmp_path)
    stored.take()
    place = seed_folder(tmp_path / "seed", NODE, 0)
    place.mkdir(parents=True)
    SeedEntries(place).put("head", b"1")
    seed = StoredSeed(stored, "seed", {})
    assert seed.entries(NODE, 0).names() == []
    stored.save()
    assert seed.entries(NODE, 0).get("head") == b"1"
