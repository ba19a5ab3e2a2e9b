"""State mount: Spark's part of a checkpoint, of which tasks on other machines write the state to an object store.

Spark knows one place for a query. This one is a table of mounts: `state` is a prefix of an object store, which tasks
read and write themselves, and the rest is the folder in which the driver works.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.machine.jars import s3_jars
from penstock.objects.object_stores import Place, s3_endpoint

__all__ = ["StateMount", "store_settings"]

_TABLE: Final = "fs.viewfs.mounttable"
# The default chain of the SDK: the environment, a profile, the platform's identity. Each machine uses its own.
_CREDENTIALS: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"


@dataclass(frozen=True)
class StateMount:
    """The mounts of one checkpoint: `name` is that of their table, `target` the prefix of the state."""

    name: str
    target: Place
    folder: Path

    @property
    def location(self) -> str:
        """The location of the checkpoint for Spark."""
        return f"viewfs://{self.name}/"

    def apply(self, session: SparkSession) -> str:
        """Let a session know the mounts, and return their location. A session may know several."""
        target = f"s3a://{self.target.host}/{urllib.parse.quote(self.target.name)}"
        session.conf.set(f"{_TABLE}.{self.name}.link./state", target)
        session.conf.set(f"{_TABLE}.{self.name}.linkFallback", self.folder.as_uri())
        return self.location


def store_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session that reaches state on a store, and fetch its jars. Raises JarResolutionError."""
    endpoint = s3_endpoint(environ)
    found = {
        "spark.jars": ",".join(str(path) for path in s3_jars()),
        # A file appears under its name when it is complete, in the folder as on the store.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # The store checks what it gets, and a file with sums would double the requests.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.hadoop.fs.s3a.aws.credentials.provider": _CREDENTIALS,
        "spark.hadoop.fs.s3a.path.style.access": str(not endpoint.hosted).lower(),
        # Names are used once, so nothing needs to be looked for before a file is written.
        "spark.hadoop.fs.s3a.performance.flags": "create,mkdir,delete",
    }
    if endpoint.uri:
        found["spark.hadoop.fs.s3a.endpoint"] = endpoint.uri
    if endpoint.region:
        found["spark.hadoop.fs.s3a.endpoint.region"] = endpoint.region
    return found
