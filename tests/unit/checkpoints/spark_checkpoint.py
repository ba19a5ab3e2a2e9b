"""Spark's part of a checkpoint, written by hand in Spark's format, for tests without a JVM."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import xxhash

__all__ = ["SparkCheckpoint", "write_changelog", "write_snapshot"]

_SNAPSHOT_EVERY = 3


def write_changelog(
    folder: Path, version: int, before: Sequence[int] = (), *, size: int | None = None
) -> Path:
    """Write a changelog whose lineage has the earlier versions; `size` is the recorded size."""
    items = [{"version": number, "checkpointUniqueId": f"id{number}"} for number in before]
    names = json.dumps(items, separators=(",", ":")).encode()
    block = struct.pack(">H2sH", 2, b"v4", len(names)) + names + b"\0"
    packed = pa.Codec("lz4_raw").compress(block).to_pybytes()
    checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
    head = struct.pack("<8sBIII", b"LZ4Block", 0x25, len(packed), len(block), checksum)
    path = folder / f"{version}_id{version}.changelog"
    path.write_bytes(head + packed)
    noted = {"mainFileSize": path.stat().st_size if size is None else size}
    path.with_name(path.name + ".crc").write_text(json.dumps(noted))
    return path


def write_snapshot(folder: Path, version: int, tables: Sequence[str] = ()) -> Path:
    """Write a snapshot and the table files to which it refers."""
    (folder / "SSTs").mkdir(exist_ok=True)
    for name in tables:
        (folder / "SSTs" / name).write_bytes(b"table")
    listed = {"sstFiles": [{"dfsSstFileName": name, "sizeBytes": 5} for name in tables]}
    path = folder / f"{version}_id{version}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", "v2\n" + json.dumps(listed))
    return path


class SparkCheckpoint:
    """Spark's files over several micro-batches, for a job with one stream and one keyed level of two tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._partitions = [folder / "state" / "0" / str(number) for number in range(2)]

    def start(self) -> None:
        """Write the files that a query writes once."""
        self._log("metadata", '{"id":"7"}')
        schema = self.folder / "state" / "0" / "_stateSchema" / "default" / "0_id"
        self._log("state/0/_stateSchema/default/0_id", "schema")
        described = {"stateStoreInfo": [{"stateSchemaFilePaths": [f"file:{schema}"]}]}
        self._log("state/0/_metadata/v2/0", f"v2\n{json.dumps(described)}")

    def plan(self, batch: int, position: int) -> None:
        """Plan a micro-batch up to a position of the stream."""
        self._log(f"offsets/{batch}", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"position": position})}')

    def work(self, batch: int) -> None:
        """Write the state of a micro-batch; snapshots come late, as from Spark's maintenance."""
        version = batch + 1
        for folder in self._partitions:
            folder.mkdir(parents=True, exist_ok=True)
            last = max((n for n in range(1, version, _SNAPSHOT_EVERY)), default=1)
            write_changelog(folder, version, range(last, version))
            if version == 1:
                write_snapshot(folder, 1, ["1.sst"])
            if version % _SNAPSHOT_EVERY == 2 and version > 2:
                write_snapshot(folder, version - 1, [f"{version - 1}.sst"])

    def commit(self, batch: int) -> None:
        """Commit a micro-batch."""
        ids = json.dumps({"0": [[f"id{batch + 1}"] for _ in self._partitions]})
        self._log(f"commits/{batch}", f'v2\n{{"nextBatchWatermarkMs":0,"stateUniqueIds":{ids}}}')

    def files(self) -> list[Path]:
        """Return all files that Spark wrote."""
        roots = [self.folder / name for name in ("offsets", "commits", "state")]
        found = [path for root in roots for path in root.rglob("*") if path.is_file()]
        return sorted([*found, *self.folder.glob("*metadata*")])

    def _log(self, name: str, content: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        sums = b"crc\0" + (512).to_bytes(4, "big") + b"sums" * -(-len(content) // 512)
        path.with_name(f".{path.name}.crc").write_bytes(sums)
