"""Spark's part of a checkpoint, written and read as Spark does it: the same files, names and order, and no sync.

What is in a state file is the model's own, behind the beginning that names the versions before it, and the sums that
Hadoop writes beside it are left out, since Spark has sums of its own there. Names and order are otherwise those of
Spark 4.2 with RocksDB and changelogs; tests/integration/test_spark_model.py compares them.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import uuid
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from pyspark.errors import PySparkException

from penstock.runtime.cuts import batch_numbers

__all__ = ["SparkLogFolder", "StateFolder", "read_spark_file", "write_description", "write_spark_file"]

_BLOCK = struct.Struct("<8sBIII")
_SEED = 0x9747B28C
_SNAPSHOT_EVERY = 4
_SUM_BYTES = 512


def write_spark_file(path: Path, data: bytes, *, overwrites: bool = True) -> None:
    """Write a file as Spark's file manager does: temporary names, Hadoop's checksums beside it, then two
    renames.
    """
    Upload(path, data).finish(overwrites=overwrites)


class Upload:
    """A file with content, but without its final name."""

    def __init__(self, path: Path, data: bytes, *, has_sums: bool = True) -> None:
        self._path = path
        self._has_sums = has_sums
        name = uuid.uuid4()
        self._new = path.with_name(f".{path.name}.{name}.tmp")
        self._new_sums = path.with_name(f"..{path.name}.{name}.tmp.crc")
        if not has_sums:
            self._new.write_bytes(data)
            return
        # Both are opened before either has bytes.
        with self._new.open("wb") as file, self._new_sums.open("wb") as sums:
            file.write(data)
            sums.write(_sums(data))

    def finish(self, *, overwrites: bool = True) -> None:
        """Rename it to its final name."""
        if not overwrites and self._path.exists():
            raise PySparkException(f"[CONCURRENT_STREAM_LOG_UPDATE] {self._path} exists")
        self._new.rename(self._path)
        if self._has_sums:
            self._new_sums.rename(_sums_of(self._path))


def _sums_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _sums(data: bytes) -> bytes:
    found = [zlib.crc32(data[at : at + _SUM_BYTES]) for at in range(0, len(data), _SUM_BYTES)]
    return b"crc\0" + struct.pack(f">I{len(found)}I", _SUM_BYTES, *found)


def read_spark_file(path: Path) -> bytes:
    """Return the bytes of a file, which must match its checksums; missing or empty checksums are ignored."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PySparkException(f"java.io.FileNotFoundException: File file:{path} does not exist") from None
    try:
        sums = _sums_of(path).read_bytes()
    except FileNotFoundError:
        return data
    if len(sums) >= 8 and sums.startswith(b"crc\0") and sums != _sums(data):
        raise PySparkException(f"Checksum error: file:{path} at 0 exp: 1 got: 2")
    return data


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    _sums_of(path).unlink(missing_ok=True)


class SparkLogFolder:
    """One of Spark's logs: a file for each micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def newest(self) -> int:
        """Return the newest micro-batch, -1 without one."""
        return max(batch_numbers(self.folder), default=-1)

    def read(self, batch: int) -> list[str]:
        """Return the lines after a file's version. Raises PySparkException for a damaged file, as Spark does."""
        path = self.folder / str(batch)
        lines = read_spark_file(path).decode().splitlines()
        if not lines or not lines[0].startswith("v"):
            raise PySparkException(f"Failed to read log file file:{path}. Incomplete log file")
        return lines[1:]

    def add(self, batch: int, lines: Iterable[str]) -> None:
        """Write the file of a micro-batch, which must not exist."""
        write_spark_file(self.folder / str(batch), "\n".join(lines).encode(), overwrites=False)

    def purge(self, before: int) -> None:
        """Delete the files of the micro-batches before one."""
        for number in batch_numbers(self.folder):
            if number < before:
                _delete(self.folder / str(number))


def write_description(folder: Path, operator: int, partitions: int, nodes: list[str]) -> None:
    """Write an operator's metadata, as Spark does before its first micro-batch."""
    place = folder / "state" / str(operator)
    for path in (place / "_metadata", place / "0" / "_metadata", place / "_stateSchema" / "default"):
        path.mkdir(parents=True, exist_ok=True)
    schema = place / "_stateSchema" / "default" / f"0_{uuid.uuid4()}"
    described = place / "_metadata" / "v2" / "0"
    if described.exists():
        return
    write_spark_file(schema, b"\0\2v3 schema of " + ",".join(nodes).encode())
    described.parent.mkdir(exist_ok=True)
    content = {
        "operatorInfo": {"operatorId": operator, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [
            {
                "storeName": "default",
                "numColsPrefixKey": 0,
                "numPartitions": partitions,
                "stateSchemaFilePaths": [f"file:{schema}"],
            }
        ],
        "operatorPropertiesJson": json.dumps(
            {
                "timeMode": "NoTime",
                "outputMode": "Append",
                "stateVariables": [{"stateName": n} for n in nodes],
            }
        ),
    }
    write_spark_file(described, f"v2\n{json.dumps(content)}".encode())


State = dict[tuple[str, str], bytes]
_Changes = list[tuple[str, str, bytes | None]]


def _snapshot(path: Path) -> State:
    """Return the state of a snapshot. Raises Spark's errors for a damaged or missing one."""
    with zipfile.ZipFile(io.BytesIO(read_spark_file(path))) as archive:
        held = msgspec.msgpack.decode(archive.read("state"))
    return {(node, entry): data for node, entry, data in held}


class StateFolder:
    """The versions of one operator's state in one partition."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, version: int, unique_id: str | None) -> State:
        """Return the state of a version: the newest readable snapshot, and the changes after it."""
        if version == 0 or unique_id is None:
            return {}
        try:
            return self._load(version, unique_id)
        except (OSError, ValueError, zipfile.BadZipFile, struct.error) as e:
            raise PySparkException(
                f"[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state: {e}. Error reading "
                f"streaming state file of file:{self._folder} does not exist"
            ) from e

    def _load(self, version: int, unique_id: str) -> State:
        changes: list[_Changes] = []
        ids = {version: unique_id}
        for number in range(version, 0, -1):
            name = f"{number}_{ids[number]}"
            snapshot = self._folder / f"{name}.zip"
            # Like Spark, it falls back to an older snapshot if one is damaged.
            with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile, PySparkException):
                state = _snapshot(snapshot)
                break
            before, made = _unpacked(read_spark_file(self._folder / f"{name}.changelog"))
            changes.append(made)
            ids.update(before)
        else:
            raise ValueError(f"no snapshot on which version {version} can be built")
        for made in reversed(changes):
            for node, entry, data in made:
                if data is None:
                    state.pop((node, entry), None)
                else:
                    state[node, entry] = data
        return state

    def store(self, version: int, lineage: dict[int, str], state: State, changes: _Changes) -> str:
        """Write a version, given the ids of earlier ones; return its own."""
        self._folder.mkdir(exist_ok=True)
        unique_id = str(uuid.uuid4())
        name = f"{version}_{unique_id}"
        since = [{"version": n, "checkpointUniqueId": lineage[n]} for n in sorted(lineage, reverse=True)]
        changelog = self._uploads(f"{name}.changelog", _packed(json.dumps(since).encode(), changes))
        if version == 1 or version % _SNAPSHOT_EVERY == 0:
            held = [[node, entry, data] for (node, entry), data in sorted(state.items())]
            archive = io.BytesIO()
            with zipfile.ZipFile(archive, "w") as file:
                file.writestr("metadata", 'v1\n{"sstFiles":[]}')
                file.writestr("state", msgspec.msgpack.encode(held))
            for upload in self._uploads(f"{name}.zip", archive.getvalue()):
                upload.finish()
        for upload in changelog:
            upload.finish()
        return unique_id

    def _uploads(self, name: str, data: bytes) -> list[Upload]:
        sums = {"algorithm": "CRC32C", "value": zlib.crc32(data), "mainFileSize": len(data)}
        return [
            Upload(self._folder / name, data, has_sums=False),
            Upload(self._folder / f"{name}.crc", json.dumps(sums).encode(), has_sums=False),
        ]

    def clean(self, oldest: int) -> None:
        """Delete files that are not needed from one version on."""
        numbers = {path: int(path.name.split("_")[0]) for path in self._folder.glob("[0-9]*_*")}
        bases = [n for path, n in numbers.items() if path.suffix == ".zip" and n <= oldest]
        for path, number in sorted(numbers.items()):
            if number < max(bases, default=0):
                _delete(path)


def _packed(since: bytes, changes: _Changes) -> bytes:
    head = struct.pack(">H", 2) + b"v4" + struct.pack(">H", len(since)) + since
    blocks = [head, msgspec.msgpack.encode(changes)]
    packed = [
        _BLOCK.pack(b"LZ4Block", 0x15, len(b), len(b), xxhash.xxh32_intdigest(b, _SEED) & 0x0FFFFFFF) + b
        for b in blocks
    ]
    return b"".join([*packed, _BLOCK.pack(b"LZ4Block", 0x15, 0, 0, 0)])


def _unpacked(data: bytes) -> tuple[dict[int, str], _Changes]:
    blocks = []
    at = 0
    while at < len(data):
        _, _, size, _, checksum = _BLOCK.unpack_from(data, at)
        block = data[at + _BLOCK.size : at + _BLOCK.size + size]
        if size and (xxhash.xxh32_intdigest(block, _SEED) & 0x0FFFFFFF) != checksum:
            raise ValueError("the checksum of a changelog")
        blocks.append(block)
        at += _BLOCK.size + size
    (skipped,) = struct.unpack_from(">H", blocks[0])
    (length,) = struct.unpack_from(">H", blocks[0], 2 + skipped)
    since: list[dict[str, Any]] = json.loads(blocks[0][4 + skipped : 4 + skipped + length])
    changes: _Changes = [tuple(change) for change in msgspec.msgpack.decode(blocks[1])]
    return {found["version"]: found["checkpointUniqueId"] for found in since}, changes
