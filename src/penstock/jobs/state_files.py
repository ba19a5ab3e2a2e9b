"""State files: whether all that Spark needs to load one version of a state partition is there and whole."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import CheckpointError

__all__ = ["RESTORE", "RESTORE_FOLDER", "check_partition", "damage"]

RESTORE: Final = (
    "Restore the file from a copy of the checkpoint, or start from a savepoint or dump with a new checkpoint."
)
RESTORE_FOLDER: Final = RESTORE.replace("the file", "the folder")

# Spark writes changelogs in blocks: a magic word, how the block is packed, its size packed and unpacked, a checksum.
_BLOCK: Final = struct.Struct("<8sBIII")
_MAGIC: Final = b"LZ4Block"
_PACKED: Final = 0x20


def damage(path: Path, what: str, remedy: str = RESTORE) -> CheckpointError:
    """The error for a damaged file of a checkpoint."""
    return CheckpointError(f"The checkpoint is damaged: {path} {what}. {remedy}")


def check_partition(folder: Path, version: int, unique_id: str) -> None:
    """Raise CheckpointError unless a version of the state in a partition's folder can be loaded.

    A version is a snapshot and all changelogs after it, of one line of descent: each changelog names those before it,
    back to a snapshot. Where a snapshot is damaged or missing Spark goes back to an older one, but never to the empty
    version 0: the first version is always a snapshot, since only snapshots name the states.
    """
    descent = {version: unique_id}
    damaged: CheckpointError | None = None
    for number in range(version, 0, -1):
        if number not in descent:
            break
        name = f"{number}_{descent[number]}"
        snapshot, changelog = folder / f"{name}.zip", folder / f"{name}.changelog"
        if snapshot.exists():
            fault = _snapshot_fault(folder, snapshot)
            if fault is None:
                return
            damaged = damaged or fault
        fault = _fault(changelog)
        if fault is not None:
            raise damaged or fault
        if number - 1 not in descent:
            before = _ancestors(changelog)
            if before is None:
                return
            descent |= before
    raise damaged or damage(
        folder, f"has no snapshot (.zip) on which version {version} can be built", RESTORE_FOLDER
    )


def _fault(path: Path) -> CheckpointError | None:
    """What is wrong with a file, as far as its size tells. Spark notes the size beside it."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return damage(path, "is missing")
    if size == 0:
        return damage(path, "is empty")
    try:
        noted = msgspec.json.decode(path.with_name(path.name + ".crc").read_bytes())["mainFileSize"]
    except (OSError, msgspec.DecodeError, TypeError, KeyError):
        return None
    return None if noted == size else damage(path, f"has {size} bytes in place of {noted}")


def _snapshot_fault(folder: Path, snapshot: Path) -> CheckpointError | None:
    """What is wrong with a snapshot: an archive, and the table files that its list names."""
    fault = _fault(snapshot)
    if fault is not None:
        return fault
    try:
        with zipfile.ZipFile(snapshot) as archive:
            listed = archive.read("metadata").split(b"\n", 1)[1]
        tables = _tables(msgspec.json.decode(listed))
    except (OSError, zipfile.BadZipFile, zipfile.error, KeyError, IndexError, ValueError, TypeError) as e:
        return damage(snapshot, f"cannot be read ({e})")
    for name, size in tables:
        path = folder / name
        if not path.exists():
            return damage(path, f"is missing, which the snapshot {snapshot.name} needs")
        if path.stat().st_size != size:
            return damage(path, f"has {path.stat().st_size} bytes in place of {size}")
    return None


def _tables(listed: dict[str, Any]) -> list[tuple[str, int]]:
    """The files beside a snapshot's archive, with their sizes."""
    tables = [
        (f"SSTs/{table['dfsSstFileName']}", table["sizeBytes"]) for table in listed.get("sstFiles") or []
    ]
    return tables + [
        (f"logs/{log['dfsLogFileName']}", log["sizeBytes"]) for log in listed.get("logFiles") or []
    ]


def _ancestors(changelog: Path) -> dict[int, str] | None:
    """The versions before a changelog's, back to a snapshot, as its beginning names them; None when that is unknown.

    Another compression than Spark's default is not read here; what is wrong then, Spark finds.
    """
    try:
        with changelog.open("rb") as file:
            magic, token, packed, unpacked, _ = _BLOCK.unpack(file.read(_BLOCK.size))
            if magic != _MAGIC:
                return None
            block = file.read(packed)
        if token & 0xF0 == _PACKED:
            block = pa.Codec("lz4_raw").decompress(block, unpacked).to_pybytes()
        (skipped,) = struct.unpack_from(">H", block)
        (length,) = struct.unpack_from(">H", block, 2 + skipped)
        found = msgspec.json.decode(block[4 + skipped : 4 + skipped + length])
        return {int(item["version"]): item["checkpointUniqueId"] for item in found}
    except (OSError, struct.error, pa.ArrowException, msgspec.DecodeError, TypeError, KeyError) as e:
        raise damage(changelog, f"cannot be read ({e})") from e
