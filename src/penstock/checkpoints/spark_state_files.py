"""Spark's state files: check that all files which Spark needs to load a version of a state partition are whole."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from penstock.errors import CheckpointError

__all__ = ["RESTORE", "RESTORE_FOLDER", "ancestors", "blocks", "check_partition", "damage"]

RESTORE: Final = (
    "Restore the file from a copy of the checkpoint, or start from a savepoint or dump with a new checkpoint."
)
RESTORE_FOLDER: Final = RESTORE.replace("the file", "the folder")

# Spark writes changelogs in blocks: a magic word, the compression, the compressed and the full size, and a checksum.
_BLOCK: Final = struct.Struct("<8sBIII")
_MAGIC: Final = b"LZ4Block"
_PACKED: Final = 0x20
_SEED: Final = 0x9747B28C
_CHECKSUM_BITS: Final = 0x0FFFFFFF


def damage(path: Path, what: str, remedy: str = RESTORE) -> CheckpointError:
    """Return the error for a damaged file of a checkpoint."""
    return CheckpointError(f"The checkpoint is damaged: {path} {what}. {remedy}")


def check_partition(folder: Path, version: int, unique_id: str, *, thorough: bool = False) -> None:
    """Raise CheckpointError unless a version of the state in a partition's folder can be loaded.

    A version is a snapshot and all changelogs after it in one line of descent: each changelog names those before it,
    back to a snapshot. If a snapshot is damaged or missing, Spark goes back to an older one, but never to the empty
    version 0: the first version is always a snapshot, since only snapshots name the states. With `thorough` the bytes
    of changelogs and snapshots are checked, too.
    """
    if version == 0:
        return
    descent = {version: unique_id}
    damaged: CheckpointError | None = None
    for number in range(version, 0, -1):
        if number not in descent:
            break
        name = f"{number}_{descent[number]}"
        snapshot, changelog = folder / f"{name}.zip", folder / f"{name}.changelog"
        if snapshot.exists():
            fault = _snapshot_fault(folder, snapshot, thorough=thorough)
            if fault is None:
                return
            damaged = damaged or fault
        fault = _fault(changelog)
        if fault is not None:
            raise damaged or fault
        if thorough:
            for _ in blocks(changelog):
                pass
        if number - 1 not in descent:
            before = ancestors(changelog)
            if before is None:
                return
            descent |= before
    raise damaged or damage(
        folder, f"has no snapshot (.zip) on which version {version} can be built", RESTORE_FOLDER
    )


def _fault(path: Path) -> CheckpointError | None:
    """Return what is wrong with a file, as far as its size shows. Spark notes the size in a file next to it."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return damage(path, "is missing")
    if size == 0:
        return damage(path, "is empty")
    note = path.with_name(path.name + ".crc")
    try:
        noted = msgspec.json.decode(note.read_bytes())["mainFileSize"]
    except OSError:
        return None
    except (msgspec.DecodeError, TypeError, KeyError):
        return damage(note, "is truncated or damaged")
    return None if noted == size else damage(path, f"has {size} bytes instead of {noted}")


def _snapshot_fault(folder: Path, snapshot: Path, *, thorough: bool) -> CheckpointError | None:
    """Return what is wrong with a snapshot: an archive, and the table files that its list names."""
    fault = _fault(snapshot)
    if fault is not None:
        return fault
    try:
        with zipfile.ZipFile(snapshot) as archive:
            listed = archive.read("metadata").split(b"\n", 1)[1]
            if thorough and (changed := archive.testzip()) is not None:
                return damage(snapshot, f"has changed bytes in {changed}")
        tables = _tables(msgspec.json.decode(listed))
    except (OSError, zipfile.BadZipFile, zipfile.error, KeyError, IndexError, ValueError, TypeError) as e:
        return damage(snapshot, f"cannot be read ({e})")
    for name, size in tables:
        path = folder / name
        if not path.exists():
            return damage(path, f"is missing, which the snapshot {snapshot.name} needs")
        if path.stat().st_size != size:
            return damage(path, f"has {path.stat().st_size} bytes instead of {size}")
    return None


def _tables(listed: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the files that belong to a snapshot's archive, with their sizes."""
    tables = [
        (f"SSTs/{table['dfsSstFileName']}", table["sizeBytes"]) for table in listed.get("sstFiles") or []
    ]
    return tables + [
        (f"logs/{log['dfsLogFileName']}", log["sizeBytes"]) for log in listed.get("logFiles") or []
    ]


def ancestors(changelog: Path) -> dict[int, str] | None:
    """Return the versions before a changelog's, back to a snapshot, from its beginning; None if they are unknown."""
    block = next(blocks(changelog), None)
    if block is None:
        return None
    try:
        (skipped,) = struct.unpack_from(">H", block)
        (length,) = struct.unpack_from(">H", block, 2 + skipped)
        found = msgspec.json.decode(block[4 + skipped : 4 + skipped + length])
        return {int(item["version"]): item["checkpointUniqueId"] for item in found}
    except (struct.error, msgspec.DecodeError, TypeError, KeyError) as e:
        raise damage(changelog, f"cannot be read ({e})") from e


def blocks(changelog: Path) -> Iterator[bytes]:
    """Yield the checked blocks of a changelog. Raises CheckpointError for the first one that has changed.

    Yields none for a file with another compression than Spark's default; Spark itself finds damage in it.
    """
    # Most processes with a checkpoint look into no changelog, and pyarrow takes half of what they load.
    import pyarrow as pa

    try:
        with changelog.open("rb") as file:
            while head := file.read(_BLOCK.size):
                magic, token, packed_size, size, checksum = _BLOCK.unpack(head)
                if magic != _MAGIC and file.tell() == _BLOCK.size:
                    return
                block = file.read(packed_size)
                if token & 0xF0 == _PACKED:
                    block = pa.Codec("lz4_raw").decompress(block, size).to_pybytes()
                if size and (xxhash.xxh32_intdigest(block, _SEED) & _CHECKSUM_BITS) != checksum:
                    raise damage(changelog, "has changed bytes")
                yield block
    except (OSError, struct.error, pa.ArrowException) as e:
        raise damage(changelog, f"cannot be read ({e})") from e
