"""A feed of readings in files for a job that counts them, with outputs on an object store."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import obstore
from file_feed import FileFeed
from obstore.store import S3Store
from s3_server import KEY, SECRET, S3Server

from penstock.jobs.settings import RunSettings

__all__ = ["ObjectFeed", "StoredReadings"]


class ObjectFeed(FileFeed):
    """Readings in files, and the job's output objects, found through the manifests, as readers should."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        super().__init__(folder)
        (folder / "key").write_text(f"{SECRET}\n")
        self.prefix = f"seen/{time.time_ns()}"
        server.put("outputs", "there", b"")
        endpoint = f"http://127.0.0.1:{server.port}"
        self._query = (
            f"?format=jsonl&endpoint={endpoint}&region=us-east-1"
            f"&access_key_id={KEY}&secret_access_key=file:{folder / 'key'}"
        )
        self._store = S3Store(
            "outputs",
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            endpoint=endpoint,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        # Manifests are immutable, so they are cached.
        self._read: dict[str, list[tuple[int, int]]] = {}

    def settings(self, folder: Path, *, checkpoint: str | None = None, **settings: Any) -> RunSettings:
        return RunSettings(
            bindings={"readings": self.binding, "seen": f"s3://outputs/{self.prefix}{self._query}"},
            checkpoint=checkpoint or str(folder / "checkpoint"),
            parallelism=2,
            **settings,
        )

    def rows(self) -> list[tuple[int, int]]:
        """Return the rows of all manifests; those read earlier while the server is down."""
        try:
            for block in obstore.list(self._store, f"{self.prefix}/_manifests"):
                for name in (one["path"] for one in block if not one["path"].endswith("about.json")):
                    if name not in self._read:
                        self._read[name] = self._rows_of(name)
        except obstore.exceptions.BaseError:
            pass
        return [row for rows in self._read.values() for row in rows]

    def _rows_of(self, manifest: str) -> list[tuple[int, int]]:
        files = json.loads(self._content(manifest))["files"]
        lines = [
            line for file in files for line in self._content(f"{self.prefix}/{file['name']}").splitlines()
        ]
        return [(row["sensor"], row["count"]) for row in map(json.loads, lines)]

    def _content(self, name: str) -> bytes:
        return bytes(obstore.get(self._store, name).bytes())

    def assert_exactly_once(self) -> None:
        assert Counter(self.rows()) == self.expected


class StoredReadings(ObjectFeed):
    """Readings in objects of the same store."""

    @property
    def binding(self) -> str:
        return f"s3://outputs/readings/{self.prefix}{self._query}"

    def write(self) -> None:
        name = f"readings/{self.prefix}/{self.files:05}.jsonl"
        content = self.next_lines.encode()
        while not self._is_written(name, content):
            time.sleep(0.5)
        self.files += 1

    def _is_written(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether it is known to exist, since the server may be down."""
        try:
            obstore.put(self._store, name, content, mode="create")
        except obstore.exceptions.AlreadyExistsError:
            return True
        except obstore.exceptions.BaseError:
            return False
        return True
