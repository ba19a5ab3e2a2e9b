"""The early JVM: Spark's JVM for a run, started before the run's code and job are loaded. Imports little itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from penstock.jobs.memory_shares import is_frugal
from penstock.machine.limits import LOCAL_HEAP_MB
from penstock.spark.startup.jvm_ahead import jvm_ahead
from penstock.spark.startup.jvm_start import JvmStart

__all__ = ["early_jvm"]


def early_jvm(
    *,
    master: str,
    checkpoint: str | None,
    memory_mb: int | None,
    checkpoint_interval_ms: int,
    spark_settings: Mapping[str, str],
) -> AbstractContextManager[None]:
    """Start the JVM for a run with these settings, which takes it meanwhile; otherwise it ends with the context.

    None is started where the run knows more: its memory's share for the JVM depends on the checkpoint, and so do the
    jars for a checkpoint on a store.
    """
    # `is_stored` would tell stores from folders with such a name, but the JVM would wait 25 ms for its imports.
    if memory_mb is not None or (checkpoint is not None and "://" in checkpoint):
        return nullcontext()
    return jvm_ahead(
        JvmStart(master, LOCAL_HEAP_MB, is_frugal(memory_mb, checkpoint_interval_ms), spark_settings)
    )
