"""State mount: the state in Spark's part of a checkpoint, which tasks on other machines write to a store.

Spark takes one location for a query. This one is a table of mounts: `state` is a prefix of S3 or a folder of HDFS,
which tasks read and write themselves, and the rest is the folder in which the driver works.
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

_USER: Final = "HADOOP_USER_NAME"
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
        """Add the mounts to a session, and return their location. A session may have several."""
        scheme = "hdfs" if self.target.family == "hdfs" else "s3a"
        target = f"{scheme}://{self.target.host}/{urllib.parse.quote(self.target.name)}"
        session.conf.set(f"{_TABLE}.{self.name}.link./state", target)
        session.conf.set(f"{_TABLE}.{self.name}.linkFallback", self.folder.as_uri())
        return self.location


def store_settings(family: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session that reaches state on a store of a family, "s3" or "hdfs".

    Fetches the jars for S3; those for HDFS are Spark's own. Raises JarResolutionError.
    """
    found = {
        # A file appears under its name when it is complete, in the folder as on the store.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # The store checks what it gets, and a file with sums would double the requests.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }
    return found | (_hdfs_settings(environ) if family == "hdfs" else _s3_settings(environ))


def _hdfs_settings(environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        # A restarting NameNode does not answer for a while, and is then in safe mode: pauses of 1 s, 30 times.
        "spark.hadoop.dfs.client.retry.policy.enabled": "true",
        "spark.hadoop.dfs.client.retry.policy.spec": "1000,30",
        # The first pause until the DataNodes have reported a file that was written.
        "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
        "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "8",
    }
    if user := environ.get(_USER):
        # For the tasks' own client; Spark acts as the driver's user.
        found[f"spark.executorEnv.{_USER}"] = user
    return found


def _s3_settings(environ: Mapping[str, str]) -> dict[str, str]:
    endpoint = s3_endpoint(environ)
    found = {
        "spark.jars": ",".join(str(path) for path in s3_jars()),
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
