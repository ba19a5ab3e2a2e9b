"""The stored state of slots, read from Spark's files: snapshots, later changes, and incomplete files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from spark_partitions import Version, commit_versions, describe_operator

from penstock.checkpoints import state_files as state_files_module
from penstock.checkpoints.state_files import StateFiles, state_files
from penstock.checkpoints.stored_slots import stored_slots
from penstock.errors import CheckpointError
from penstock.objects.object_folder import FoundObject
from penstock.objects.object_stores import Place

NODE = "step/rooms"
NAMES = ["head", "header", "version/1/0", "version/22/13"]
CHANGES = st.dictionaries(st.sampled_from(NAMES), st.none() | st.binary(max_size=40))


def read(folder: Path, batch: int, numbers: Sequence[int] = (0,)) -> dict[int, dict[str, bytes]]:
    return {
        number: {name: bytes(content) for name, content in entries.items()}
        for number, entries in stored_slots(folder, batch, NODE, StateFiles(folder), numbers)
    }


@examples(40)
@given(st.lists(CHANGES, min_size=1, max_size=6), st.integers(1, 6))
def test_a_slot_has_what_its_versions_left(
    tmp_path_factory: pytest.TempPathFactory, versions: list[Version], snapshot: int
) -> None:
    """This holds at and after snapshots; a slot that is empty or has not run has no entries."""
    folder = tmp_path_factory.mktemp("spark")
    describe_operator(folder, NODE)
    snapshot = min(snapshot, len(versions))
    commit_versions(folder, NODE, [versions, [{"head": b"x" * 5000}] * len(versions)], snapshot)
    held: dict[str, bytes | None] = {}
    for batch, changes in enumerate(versions):
        held |= changes
        if batch + 1 >= snapshot:
            expected = {name: content for name, content in held.items() if content is not None}
            assert read(folder, batch, (0, 1, 2)) == {0: expected, 1: {"head": b"x" * 5000}, 2: {}}


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    """It may be the commit, a changelog, the snapshot, one of its tables, or the description."""
    describe_operator(tmp_path, NODE)
    commit_versions(tmp_path, NODE, [[{"head": b"1"}, {"head": b"2"}, {"head": b"3"}]], 1)
    assert read(tmp_path, 2) == {0: {"head": b"3"}}
    place = tmp_path / "state" / "0" / "0"
    for path in (
        tmp_path / "commits" / "2",
        place / "3_0000-3.changelog",
        place / "2_0000-2.changelog",
        place / "1_0000-1.zip",
        next((place / "SSTs").iterdir()),
        tmp_path / "state" / "0" / "_metadata" / "v2" / "0",
    ):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(CheckpointError):
            read(tmp_path, 2)
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(CheckpointError):
            read(tmp_path, 2)
        path.write_bytes(content)
    assert read(tmp_path, 2) == {0: {"head": b"3"}}


class StateStore:
    """An object store with the files of a folder, which records requests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fetched: list[str] = []

    def objects(self) -> Iterator[FoundObject]:
        for path in self._folder.rglob("*"):
            if path.is_file():
                yield FoundObject(str(path.relative_to(self._folder)), path.stat().st_size, 0)

    def copy(self, name: str, file: IO[bytes]) -> None:
        content = (self._folder / name).read_bytes()
        self.fetched.append(name)
        file.write(content)


def test_of_state_on_a_store_only_what_is_needed_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are fetched once, of the named slot, from the snapshot on; missing ones are reported as in a folder."""
    there, here = tmp_path / "there", tmp_path / "here"
    describe_operator(there, NODE)
    changes: list[Version] = [{"head": b"1"}, {"head": b"2"}, {"head": b"3"}, {"head": b"4"}]
    commit_versions(there, NODE, [changes, changes], 2)
    here.mkdir()
    (there / "commits").rename(here / "commits")
    store = StateStore(there / "state")
    monkeypatch.setattr(state_files_module, "ObjectFolder", lambda *_: store)
    monkeypatch.setattr(state_files_module, "state_target", lambda _: Place("s3", "bucket", "rooms/state/x"))

    def read_there(batch: int) -> dict[int, dict[str, bytes]]:
        with state_files(here) as files:
            found = stored_slots(here, batch, NODE, files, [0])
            return {n: {name: bytes(c) for name, c in entries.items()} for n, entries in found}

    assert read_there(3) == {0: {"head": b"4"}}
    names = [name for name in store.fetched if "_metadata" not in name]
    assert len(set(names)) == len(names)
    assert not any(name.startswith(("0/0/1_", "0/1/")) for name in names)
    (there / "state" / "0" / "0" / "4_0000-4.changelog").unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        read_there(3)
