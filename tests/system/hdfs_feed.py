"""A feed of readings in HDFS files, for a job whose outputs and checkpoint are on HDFS too."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from file_feed import FileFeed
from hdfs_native import WriteOptions
from hdfs_server import HdfsServer

from penstock.jobs.settings import RunSettings

__all__ = ["HdfsFeed"]


class HdfsFeed(FileFeed):
    """Each file has one reading of each sensor; outputs are read through the manifests, as readers should."""

    pause_s = 1.0

    def __init__(self, folder: Path, server: HdfsServer) -> None:
        super().__init__(folder)
        self._url = server.url
        self._client = server.client()
        self._home = f"/feeds/{time.time_ns()}/a b, 50%"
        # Manifests are immutable, so they are cached.
        self._read: dict[str, list[tuple[int, int]]] = {}

    @property
    def checkpoint(self) -> str:
        return f"{self._url}{self._home}/checkpoint"

    def settings(self, _folder: Path, *, checkpoint: str | None = None, **settings: Any) -> RunSettings:
        place = f"{self._url}{self._home.replace('%', '%25')}"
        return RunSettings(
            bindings={"readings": f"{place}/in?format=jsonl", "seen": f"{place}/seen?format=jsonl"},
            checkpoint=checkpoint or self.checkpoint,
            parallelism=2,
            **settings,
        )

    def write(self) -> None:
        while not self._is_written(f"{self.files:05}.jsonl", self.next_lines.encode()):
            time.sleep(0.5)
        self.files += 1

    def _is_written(self, name: str, content: bytes) -> bool:
        """Write a file; return whether it is known to exist, since a server may be killed meanwhile."""
        try:
            self._client.mkdirs(f"{self._home}/in", create_parent=True)
            with self._client.create(f"{self._home}/new/{name}", WriteOptions(overwrite=True)) as file:
                file.write(content)
            self._client.rename(f"{self._home}/new/{name}", f"{self._home}/in/{name}")
        except FileExistsError:
            return True
        except (OSError, RuntimeError):
            return False
        return True

    def rows(self) -> list[tuple[int, int]]:
        """Return the rows of all manifests; those read earlier while a server is down."""
        # Waiting tests poll rows constantly, which would load the servers.
        time.sleep(0.3)
        try:
            for name in self._manifests("seen"):
                if name not in self._read:
                    found = map(json.loads, self._lines_of("seen", name))
                    self._read[name] = [(row["sensor"], row["count"]) for row in found]
        except (OSError, RuntimeError):
            pass
        return [row for rows in self._read.values() for row in rows]

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return the dead letters, which are beside the checkpoint."""
        at = "checkpoint/dead-letters"
        return [json.loads(line) for name in self._manifests(at) for line in self._lines_of(at, name)]

    def state(self) -> dict[str, str | None]:
        """Return the files of the state, with attributes that distinguish files of the same name."""
        try:
            found = list(self._client.list_status(f"{self._home}/checkpoint/state", recursive=True))
        except FileNotFoundError:
            return {}
        return {one.path: f"{one.length} {one.modification_time}" for one in found if not one.isdir}

    def holds(self, uri: str) -> bool:
        """Return whether any file is below a folder."""
        try:
            found = list(self._client.list_status(uri.removeprefix(self._url), recursive=True))
        except FileNotFoundError:
            return False
        return any(not one.isdir for one in found)

    def _manifests(self, folder: str) -> list[str]:
        try:
            found = list(self._client.list_status(f"{self._home}/{folder}/_manifests", recursive=True))
        except FileNotFoundError:
            return []
        return [one.path for one in found if not one.isdir and Path(one.path).stem.isdecimal()]

    def _lines_of(self, folder: str, manifest: str) -> list[bytes]:
        files = json.loads(self._client.read(manifest).read())["files"]
        return [
            line
            for file in files
            for line in self._client.read(f"{self._home}/{folder}/{file['name']}").read().splitlines()
        ]

    def assert_exactly_once(self) -> None:
        assert Counter(self.rows()) == self.expected
