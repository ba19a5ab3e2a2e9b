"""Partitions of state as Spark stores them: snapshots with changelogs after them, written without a JVM."""

from __future__ import annotations

import json
import struct
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import xxhash
from rocksdict import Options, Rdict

__all__ = ["Version", "commit_versions", "describe_operator"]

Version = Mapping[str, bytes | None]
"""What a version changes: bytes by name; None where it removes the name."""

FAMILY = 2


def row(content: bytes) -> bytes:
    """A row of one column."""
    padding = b"\0" * (-len(content) % 8)
    return struct.pack("<QII", 0, len(content), 16) + content + padding


def key(name: str, family: int = FAMILY) -> bytes:
    slot = row(struct.pack("<QQ", 0, 0))
    return struct.pack("<HI", family, len(slot) + 1) + b"\0" + slot + b"\0" + row(row(name.encode()))


def value(content: bytes) -> bytes:
    stored = b"\0" + row(content)
    return struct.pack("<II", 7, len(stored)) + stored


def describe_operator(folder: Path, node: str) -> None:
    """As Spark describes its first operator."""
    place = folder / "state" / "0" / "_metadata" / "v2"
    place.mkdir(parents=True)
    properties = json.dumps({"stateVariables": [{"stateName": node}]})
    (place / "0").write_text("v2\n" + json.dumps({"operatorPropertiesJson": properties}))


def commit_versions(folder: Path, node: str, partitions: Sequence[Sequence[Version]], snapshot: int) -> None:
    """Commit the versions of each partition as micro-batches 0, 1 ...; one of them has a snapshot, numbered from 1."""
    (folder / "commits").mkdir(exist_ok=True)
    for number, versions in enumerate(partitions):
        place = folder / "state" / "0" / str(number)
        place.mkdir(parents=True)
        held: dict[str, bytes] = {}
        for version, changes in enumerate(versions, 1):
            held |= {name: content for name, content in changes.items() if content is not None}
            for name in [name for name, content in changes.items() if content is None]:
                held.pop(name, None)
            write_changelog(place, version, changes, snapshot)
            if version == snapshot:
                write_snapshot(place, version, node, held)
    for version in range(1, len(partitions[0]) + 1):
        ids = {"0": [[unique_id(version)] for _ in partitions]}
        (folder / "commits" / str(version - 1)).write_text(f"v2\n{json.dumps({'stateUniqueIds': ids})}")


def unique_id(version: int) -> str:
    return f"0000-{version}"


def write_changelog(place: Path, version: int, changes: Version, snapshot: int) -> None:
    before = [
        {"version": number, "checkpointUniqueId": unique_id(number)}
        for number in range(version - 1, min(snapshot, version) - 1, -1)
    ]
    content = b"".join(struct.pack(">H", len(text)) + text for text in (b"v4", json.dumps(before).encode()))
    # A change of another step, in the same partition.
    changed = {key("head", FAMILY + 1): b"x", **{key(name): content for name, content in changes.items()}}
    for stored, given in changed.items():
        kind = 2 if given is None else 1
        content += struct.pack(">Bi", kind, len(stored)) + stored
        content += (
            struct.pack(">i", -1) if given is None else struct.pack(">i", len(value(given))) + value(given)
        )
    write_blocks(place / f"{version}_{unique_id(version)}.changelog", content + b"\0")


def write_blocks(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        for start in range(0, len(content), 1000):
            block = content[start : start + 1000]
            packed = pa.Codec("lz4_raw").compress(block, asbytes=True)
            checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
            file.write(struct.pack("<8sBIII", b"LZ4Block", 0x20, len(packed), len(block), checksum) + packed)


def write_snapshot(place: Path, version: int, node: str, held: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Rdict(folder, Options(raw_mode=True))
        for name, content in held.items():
            database[key(name)] = value(content)
        database[key("head", FAMILY + 1)] = b"x"
        database.flush()
        database.close()
        tables = []
        (place / "SSTs").mkdir(exist_ok=True)
        with zipfile.ZipFile(place / f"{version}_{unique_id(version)}.zip", "w") as archive:
            for path in sorted(Path(folder).iterdir()):
                if path.suffix == ".sst":
                    stored = f"{path.stem}-{version}.sst"
                    (place / "SSTs" / stored).write_bytes(path.read_bytes())
                    tables.append({"localFileName": path.name, "dfsSstFileName": stored})
                elif path.name.startswith(("MANIFEST", "CURRENT", "OPTIONS")):
                    archive.write(path, path.name)
            listed = {"sstFiles": tables, "columnFamilyMapping": {"default": 1, node: FAMILY}}
            archive.writestr("metadata", "v1\n" + json.dumps(listed))
