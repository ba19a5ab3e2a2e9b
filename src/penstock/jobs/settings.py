"""Run settings: all values that a user can set for a run, checked before anything starts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.commands.receipt_segments import DEFAULT_RECEIPTS_BYTES
from penstock.control.commands import DEFAULT_MAX_BYTES
from penstock.errors import JobDefinitionError
from penstock.jobs.memory_shares import MemoryShares, is_frugal
from penstock.metrics.addresses import metrics_address
from penstock.metrics.batch_metrics import DEFAULT_METRICS_BYTES
from penstock.models.library import DEFAULT_MAX_MODEL_BYTES
from penstock.objects.allowed import AllowedPlaces
from penstock.state.kept_slots import DEFAULT_STATE_MEMORY_BYTES

__all__ = ["RunSettings"]

# An interval ends with some tenths of a second of Spark's.
_MIN_CHECKPOINT_INTERVAL_MS: Final = 500
_LEAST: Final = {
    "max_command_bytes": 1,
    "max_model_mb": 1,
    "receipts_mb": 1,
    "metrics_mb": 1,
    "log_mb": 1,
    "retained_batches": 2,
    "max_held_bytes": 0,
    "state_memory_mb": 0,
}


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run.

    Args:
        bindings: URIs of the streams and sinks, by name. The name `dead-letters` is optional; the default is the folder
            `dead-letters` in the checkpoint.
        bounded: process the available input and finish, instead of waiting for more.
        checkpoint: the folder that keeps the job's progress and state, or its place on an object store
            (s3://BUCKET/PREFIX, gs://, az://) or HDFS (hdfs://HOST:PORT/PATH); None is a temporary folder, so that
            every run starts without state.
        parallelism: number of tasks that share each keyed level; None is the number of cores, at most the number of key
            groups. Fixed for a checkpoint.
        batch_interval_ms: minimum time between the starts of two micro-batches, in milliseconds; 0 starts the next
            one as soon as there is data.
        checkpoint_interval_ms: run in real time: tasks stay for this long, process records as they come, and state and
            positions are made durable at the end; in milliseconds. 0 runs in micro-batches.
        master: the Spark master.
        strict: stop at the first record that cannot be processed, instead of writing it to the dead letters.
        max_command_bytes: the size limit of a command; larger ones are rejected.
        max_model_mb: the size limit of a model that a command loads, in MiB; larger ones are rejected.
        max_held_bytes: how much data may wait for paused steps inside the job; beyond it data streams are not read.
        state_memory_mb: how much of the state of keyed steps each worker keeps in memory, in MiB; the rest is on its
            local disk, with 16 bytes per key in memory.
        memory_mb: how much memory the processes of the job may use on this machine in all, in MiB; None sets no limit
            but that of the JVM's heap and `state_memory_mb`.
        receipts_mb: how many receipts the checkpoint keeps, in MiB; beyond that the oldest are deleted.
        metrics_mb: how many metrics of micro-batches the checkpoint keeps, in MiB; beyond that the oldest are deleted.
        log_mb: how much of Spark's log and of what functions print the checkpoint keeps, in MiB.
        from_savepoint: the id or place of the savepoint to start from if the checkpoint is new.
        from_dump: the place of the dump to start from if the checkpoint is new.
        must_continue: refuse to start without state: the checkpoint must exist, since the job has run with it.
        fresh: put an existing checkpoint aside first, so that the checkpoint is new.
        keep_positions: read on from the positions in the snapshot; None does so for a savepoint but not for a dump.
        allow_non_restored_state: leave behind the state of steps that the job no longer has.
        new_outputs_from: the micro-batch from which to start new outputs, if exactly-once sinks hold micro-batches that
            the checkpoint does not know; None refuses to start then. Ignored if another micro-batch is next.
        replan: the micro-batch to plan again, if an earlier run has planned but not finished it and no output has a
            part of it. Ignored if another micro-batch is next.
        retained_batches: how many micro-batches the checkpoint can go back.
        started_by: the user who starts the job, for its events; None is the user of this process.
        lock_timeout_s: how long to wait, in seconds, for another run that uses the checkpoint to end.
        metrics_bind: HOST:PORT at which to serve the metrics of the job to Prometheus; None serves none.
        metrics_allow_remote: allow an address there that other machines can reach.
        allow_read: places that commands may have the job read: files, folders and addresses, with all below them.
        allow_write: places that commands may have the job write to: folders and addresses, with all below them.
        spark_settings: further Spark settings, which take precedence over penstock's own.

    """

    bindings: Mapping[str, str] = field(default_factory=dict)
    bounded: bool = False
    checkpoint: str | None = None
    parallelism: int | None = None
    batch_interval_ms: int = 0
    checkpoint_interval_ms: int = 0
    master: str = "local[*]"
    strict: bool = False
    max_command_bytes: int = DEFAULT_MAX_BYTES
    max_model_mb: int = DEFAULT_MAX_MODEL_BYTES >> 20
    max_held_bytes: int = 256 << 20
    state_memory_mb: int = DEFAULT_STATE_MEMORY_BYTES >> 20
    memory_mb: int | None = None
    receipts_mb: int = DEFAULT_RECEIPTS_BYTES >> 20
    metrics_mb: int = DEFAULT_METRICS_BYTES >> 20
    log_mb: int = 64
    from_savepoint: str | None = None
    from_dump: str | None = None
    must_continue: bool = False
    fresh: bool = False
    keep_positions: bool | None = None
    allow_non_restored_state: bool = False
    new_outputs_from: int | None = None
    replan: int | None = None
    retained_batches: int = 100
    lock_timeout_s: float = 60.0
    started_by: str | None = None
    metrics_bind: str | None = None
    metrics_allow_remote: bool = False
    allow_read: Sequence[str] = ()
    allow_write: Sequence[str] = ()
    spark_settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_frugal(self) -> bool:
        """Whether the JVM should use little memory, and a collector that is best on few cores."""
        return is_frugal(self.memory_mb, self.checkpoint_interval_ms)

    def memory_shares(self, parallelism: int) -> MemoryShares | None:
        """Divide `memory_mb` among the processes of the job. Raises JobDefinitionError when it is too little."""
        if self.memory_mb is None:
            return None
        return MemoryShares.of(self.memory_mb, parallelism, in_real_time=bool(self.checkpoint_interval_ms))

    @property
    def allowed(self) -> AllowedPlaces:
        """The places that commands may have the job open."""
        return AllowedPlaces.of(self.allow_read, self.allow_write)

    def __post_init__(self) -> None:
        AllowedPlaces.of(self.allow_read, self.allow_write)
        if self.parallelism is not None and not 1 <= self.parallelism <= 32768:
            raise JobDefinitionError(f"The parallelism is {self.parallelism}; it must be from 1 to 32768.")
        if self.batch_interval_ms < 0:
            raise JobDefinitionError(
                f"The batch interval is {self.batch_interval_ms} ms; it must not be negative."
            )
        if self.checkpoint_interval_ms and self.checkpoint_interval_ms < _MIN_CHECKPOINT_INTERVAL_MS:
            raise JobDefinitionError(
                f"The checkpoint interval is {self.checkpoint_interval_ms} ms; it must be at least "
                f"{_MIN_CHECKPOINT_INTERVAL_MS} ms, or 0 for micro-batches."
            )
        if self.checkpoint_interval_ms and self.batch_interval_ms:
            raise JobDefinitionError(
                "A job has a batch interval in micro-batches, or a checkpoint interval in real time. Give only one."
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                rule = f"be at least {least}" if least else "not be negative"
                raise JobDefinitionError(f"{name} is {value}; it must {rule}.")
        if self.from_savepoint is not None and self.from_dump is not None:
            raise JobDefinitionError("A job starts from a savepoint or from a dump. Give only one of them.")
        if self.must_continue and (self.checkpoint is None or self.fresh):
            other = "without a checkpoint" if self.checkpoint is None else "together with fresh"
            raise JobDefinitionError(
                f"must_continue cannot be used {other}: the job would start without state."
            )
        if self.checkpoint is not None and is_stored(self.checkpoint):
            self._check_stored()
        elif self.checkpoint is not None and "://" in self.checkpoint:
            raise JobDefinitionError(
                f"{self.checkpoint!r} cannot hold a checkpoint. Use a folder, which may be on a file system that "
                "all machines mount, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or "
                "hdfs://HOST:PORT/PATH."
            )
        if self.memory_mb is not None and self.state_memory_mb != RunSettings.state_memory_mb:
            raise JobDefinitionError(
                "memory_mb divides the memory of the job, including that for state. Leave out state_memory_mb."
            )
        if self.memory_mb is not None and not self.master.startswith("local"):
            raise JobDefinitionError(
                f"memory_mb limits a job on this machine, and the master is {self.master!r}. On a cluster, set "
                "spark.driver.memory and spark.executor.memory."
            )
        for name in ("new_outputs_from", "replan"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise JobDefinitionError(f"{name} is {number}; it must be the number of a micro-batch.")
        if not 0 <= self.lock_timeout_s < math.inf:
            raise JobDefinitionError(f"lock_timeout_s is {self.lock_timeout_s}; it must be 0 or more.")
        if self.metrics_bind is not None:
            metrics_address(self.metrics_bind, allow_remote=self.metrics_allow_remote)
        if not re.fullmatch(r"local(\[(\*|[1-9]\d*)(,\d+)?\])?|spark://\S+:\d+|k8s://\S+|yarn", self.master):
            raise JobDefinitionError(
                f"{self.master!r} is not a Spark master. Use local[*], local[N], spark://HOST:PORT, k8s://URL or yarn."
            )

    def _check_stored(self) -> None:
        """Refuse what a checkpoint on an object store cannot do."""
        if self.fresh:
            raise JobDefinitionError(
                f"A checkpoint on an object store ({self.checkpoint}) cannot be put aside: choose another prefix "
                "instead of fresh."
            )
