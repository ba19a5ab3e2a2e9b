"""A feed of readings in objects, for a job whose input, output and checkpoint are on an object store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import obstore
from object_feed import ObjectFeed
from s3_server import S3Server

import penstock as ps
from penstock.jobs.settings import RunSettings

__all__ = ["ClusterFeed"]


class ClusterFeed(ObjectFeed):
    """Each object has one reading of each sensor. Every process gets endpoint and credentials from its
    environment.
    """

    pause_s = 1.0

    def __init__(self, folder: Path, server: S3Server) -> None:
        super().__init__(folder, server)
        self._server = server
        server.put("checkpoints", "there", b"")

    @property
    def checkpoint(self) -> str:
        return f"s3://checkpoints/{self._home}"

    @property
    def _home(self) -> str:
        # Prefixes may have characters that addresses may not.
        return f"{self.prefix}/a b, 50%25"

    def rows(self) -> list[tuple[int, int]]:
        # Waiting tests poll rows constantly, which would load the server.
        time.sleep(0.3)
        return super().rows()

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return the dead letters, which are in the store with the checkpoint."""
        uris = ps.committed_objects(f"{self.checkpoint}/dead-letters")
        return [json.loads(line) for uri in uris for line in self._server.get(uri).splitlines()]

    def state(self) -> dict[str, str | None]:
        """Return the objects of the state, with their ETags."""
        return self._server.tags("checkpoints", f"{self._home}/state")

    def holds(self, uri: str) -> bool:
        """Return whether anything is below a prefix of the checkpoints."""
        return bool(self._server.tags("checkpoints", uri.removeprefix("s3://checkpoints/")))

    def write(self) -> None:
        content = self.next_lines.encode()
        while not self._is_written(f"in/{self.prefix}/{self.files:05}.jsonl", content):
            time.sleep(0.5)
        self.files += 1

    def _is_written(self, name: str, content: bytes) -> bool:
        """Write an object; return whether it is known to exist, since the server may be killed meanwhile."""
        try:
            self._server.put("outputs", name, content)
        except obstore.exceptions.BaseError:
            return False
        return True

    def settings(self, folder: Path, *, checkpoint: str | None = None, **settings: Any) -> RunSettings:
        return RunSettings(
            bindings={
                "readings": f"s3://outputs/in/{self.prefix}?format=jsonl",
                "seen": f"s3://outputs/{self.prefix}?format=jsonl",
            },
            checkpoint=self.checkpoint,
            parallelism=2,
            **settings,
        )
