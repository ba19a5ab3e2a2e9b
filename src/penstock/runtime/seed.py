"""Seeds: the initial state for the first micro-batch of a job, as files for each slot (no Spark)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from penstock.runtime.initial_state import StoredEntries
from penstock.runtime.packed_rows import WAKE, PackedRow, packed_batches
from penstock.runtime.plan import JobPlan
from penstock.state.stored_blocks import Content, Entries

__all__ = [
    "FolderSeed",
    "SeedEntries",
    "SlotReader",
    "read_seed",
    "seed_folder",
    "seed_slots",
    "take_over",
    "wake_slots",
]


SlotReader: TypeAlias = Callable[[int, Mapping[str, Content]], Iterable[bytes]]
"""A function of the partition number of a slot and its stored entries, whose results go to the caller."""


def seed_folder(seed: Path, node: str, first_key_group: int) -> Path:
    """Return the folder with the stored entries of a slot of a step."""
    return seed / quote(node, safe="") / f"{first_key_group:05d}"


class SeedEntries:
    """The stored entries of a slot, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name, or None if it does not exist."""
        path = self._path(name)
        return path.read_bytes() if path.exists() else None

    def put(self, name: str, content: bytes) -> None:
        """Write the bytes of a name durably."""
        with self._path(name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a name."""
        self._path(name).unlink()

    def names(self) -> list[str]:
        """Return all names, sorted; empty when the slot has no seed."""
        if not self._folder.exists():
            return []
        return sorted(path.name.replace("~", "/") for path in self._folder.iterdir())

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "~")


@dataclass(frozen=True)
class FolderSeed:
    """A seed in a folder that all tasks reach."""

    folder: Path

    def entries(self, node: str, first_key_group: int) -> SeedEntries:
        """Return the stored entries of a slot of a step."""
        return SeedEntries(seed_folder(self.folder, node, first_key_group))


def take_over(stored: StoredEntries, entries: Entries) -> None:
    """Copy all entries of a slot's seed to its stored state. Entries that exist already are from the same seed."""
    for name in stored.names():
        content = stored.get(name)
        assert content is not None
        entries.put(name, content)


class _Stored(Mapping[str, bytes]):
    """Entries that are read from their files at each access."""

    def __init__(self, entries: SeedEntries) -> None:
        self._entries: Final = entries
        self._names: Final = entries.names()

    def __getitem__(self, name: str) -> bytes:
        content = self._entries.get(name)
        if content is None:
            raise KeyError(name)
        return content

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_seed(
    seed: Path,
    node: str,
    reader: SlotReader,
    first_key_groups: Mapping[int, int],
) -> list[bytes]:
    """Call `reader` for slots of a step in a seed, as `stored_state.read_slots` does for stored state.

    `first_key_groups` selects the slots: it has the first key group of each by partition number.
    """
    return [
        body
        for number, entries in seed_slots(seed, node, first_key_groups)
        for body in reader(number, entries)
    ]


def seed_slots(
    seed: Path, node: str, first_key_groups: Mapping[int, int]
) -> Iterator[tuple[int, Mapping[str, Content]]]:
    """Yield the slots of a step in a seed by partition number, with their stored entries."""
    for number, group in first_key_groups.items():
        entries = _Stored(SeedEntries(seed_folder(seed, node, group)))
        if entries:
            yield number, entries


def wake_slots(
    plan: JobPlan, batches: Iterable[pa.RecordBatch], *, is_first: bool
) -> Iterator[pa.RecordBatch]:
    """Yield packed rows, preceded by one for each slot in the first micro-batch of a job with a seed.

    That row makes each slot take over its seed, even if no record reaches it.
    """
    if is_first and plan.seed is not None:
        rows = [PackedRow(WAKE, group, 0, "", 0, b"") for group in plan.first_key_groups]
        yield from packed_batches(rows, plan.slots)
    yield from batches
