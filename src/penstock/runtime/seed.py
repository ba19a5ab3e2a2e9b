"""Seeds: the state with which the first micro-batch of a job begins, as files for each slot (no Spark)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from penstock.state.slot_tables import Entries

__all__ = ["seed_folder", "take_over"]


def seed_folder(seed: Path, node: str, first_key_group: int) -> Path:
    """Where the stored entries of a slot of a step are."""
    return seed / quote(node, safe="") / f"{first_key_group:05d}"


def take_over(place: Path, entries: Entries) -> None:
    """Put all entries of a slot's seed where its state is stored; what is there already is from the same seed."""
    if place.exists():
        for path in sorted(place.iterdir()):
            entries.put(path.name.replace("~", "/"), path.read_bytes())
