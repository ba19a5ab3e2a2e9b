"""Seeds: the state with which the first micro-batch of a job begins, as files for each slot (no Spark)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from penstock.runtime.packed_rows import WAKE, PackedRow, packed_batches
from penstock.runtime.plan import JobPlan
from penstock.state.slot_log import Entries
from penstock.state.stored_blocks import Content

__all__ = ["SeedEntries", "SlotReader", "read_seed", "seed_folder", "take_over", "woken"]


SlotReader: TypeAlias = Callable[[int, Mapping[str, Content]], Iterable[bytes]]
"""Called with the number of a slot's partition and its stored entries; what it gives goes to who reads the state."""


def seed_folder(seed: Path, node: str, first_key_group: int) -> Path:
    """Where the stored entries of a slot of a step are."""
    return seed / quote(node, safe="") / f"{first_key_group:05d}"


class SeedEntries:
    """The stored entries of a slot as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def get(self, name: str) -> bytes | None:
        """The bytes of a name."""
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
        """All names, sorted; none when the slot has no seed."""
        if not self._folder.exists():
            return []
        return sorted(path.name.replace("~", "/") for path in self._folder.iterdir())

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "~")


def take_over(place: Path, entries: Entries) -> None:
    """Put all entries of a slot's seed where its state is stored; what is there already is from the same seed."""
    stored = SeedEntries(place)
    for name in stored.names():
        content = stored.get(name)
        assert content is not None
        entries.put(name, content)


class _Stored(Mapping[str, bytes]):
    """Entries that are read from their files each time."""

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
    """Call `reader` for slots of a step in a seed, as `stored_state.read_slots` does for what is stored.

    `first_key_groups` are those of the slots that are wanted, by the numbers of their partitions.
    """
    found: list[bytes] = []
    for number, group in first_key_groups.items():
        entries = _Stored(SeedEntries(seed_folder(seed, node, group)))
        if entries:
            found += reader(number, entries)
    return found


def woken(plan: JobPlan, batches: Iterable[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
    """Packed rows, and in the first micro-batch of a job with a seed one more for each slot.

    With it each slot takes over its seed, also those that no record reaches.
    """
    if is_first and plan.seed is not None:
        rows = [PackedRow(WAKE, group, 0, "", 0, b"") for group in plan.first_key_groups]
        yield from packed_batches(rows, plan.slots)
    yield from batches
