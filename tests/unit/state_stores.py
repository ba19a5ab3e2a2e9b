"""The state stores of the Spark session that tests share, which live on after a run."""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["stop_state_stores"]


def stop_state_stores(session: SparkSession) -> None:
    """Close them all, so that the next run reads its checkpoint from disk and nothing looks after the former one.

    Their maintenance ends first: `stop` holds a lock while it waits for that, and the maintenance of a state that is in
    progress needs the same lock. Spark gives up after 300 s.
    """
    classes = session._jvm.org.apache.spark.sql.execution.streaming.state  # type: ignore[union-attr]
    stores = getattr(getattr(classes, "StateStore$"), "MODULE$")
    stores.stopMaintenanceTaskWithoutLock()
    stores.stop()
