"""Suspensions: versions that a task must not call any more, since a call hung or took too much memory.

They are files in the library, `models/suspended/STEP/MODEL/VERSION-TIME-GROUP.json`, written before the worker ends.
So every repetition of the work reads them, and decides alike.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from penstock.base.durable import write_once

__all__ = ["Suspension", "find_suspensions", "suspend", "suspended_versions"]

_SUSPENDED: Final = "suspended"


class Suspension(msgspec.Struct, frozen=True):
    """A version that must not be called in a slot, from the time of a micro-batch or round on.

    `command` is the id of the command that gave the version its status: another one lifts the suspension. `from_ms` is
    that time in milliseconds since 1970, and `key_group` the first one of the slot.
    """

    step: str
    model: str
    version: str
    command: str
    reason: str
    from_ms: int
    key_group: int


def suspend(folder: str, found: Suspension) -> None:
    """Suspend a version; the file is durable when this returns."""
    path = _folder(folder, found.step, found.model)
    write_once(path / f"{found.version}-{found.from_ms}-{found.key_group}.json", msgspec.json.encode(found))


def suspended_versions(
    folder: str, step: str, model: str, now_ms: int, key_groups: Collection[int]
) -> Iterator[Suspension]:
    """Yield the suspensions of a model that count in a slot at a time."""
    if not folder:
        return
    for found in _in_folder(_folder(folder, step, model)):
        if found.from_ms <= now_ms and found.key_group in key_groups:
            yield found


def find_suspensions(folder: str) -> list[Suspension]:
    """Return all suspensions, in the order of their files."""
    places = sorted(Path(folder, _SUSPENDED).glob("*/*"))
    return [found for place in places for found in _in_folder(place)]


def _in_folder(folder: Path) -> Iterator[Suspension]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return
    for name in names:
        # One that is being written has another name.
        if not name.startswith("."):
            yield _read(folder / name)


@functools.lru_cache(maxsize=256)
def _read(path: Path) -> Suspension:
    """Read a file, which never changes."""
    return msgspec.json.decode(path.read_bytes(), type=Suspension)


def _folder(folder: str, step: str, model: str) -> Path:
    return Path(folder, _SUSPENDED, quote(step, safe=""), quote(model, safe=""))
