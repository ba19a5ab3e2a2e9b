"""Spark's own windows, as the peer of the benchmark of windows: groupBy(window), or plain Python for each record.

This is not a benchmark by itself: `benchmarks.windows` starts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peer_query import run_query
from benchmarks.window_jobs import ACCURACY, SIZE_MS

__all__ = ["main"]

_READING: Final = "key BIGINT, at BIGINT, value DOUBLE"
_MEAN: Final = "key BIGINT, window_start BIGINT, mean DOUBLE"


class Means(StatefulProcessor):
    """The mean of each window, record by record with `transformWithState`, as its documentation shows.

    The totals of a key's windows are read and written once in a micro-batch, since every state call is a round trip
    between the worker and the JVM.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._totals = handle.getMapState("totals", "start BIGINT", "count BIGINT, total DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """All rows of one key in a micro-batch."""
        found: dict[int, tuple[int, float]] = {}
        for row in rows:
            start = row.at - row.at % SIZE_MS
            if start not in found:
                found[start] = self._totals.getValue((start,)) or (0, 0.0)
            count, total = found[start]
            found[start] = count + 1, total + row.value
        for start, totals in found.items():
            self._totals.updateValue((start,), totals)
            self._handle.registerTimer(start + SIZE_MS - 1)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Emit the mean at the end of a window."""
        start = expiredTimerInfo.getExpiryTimeInMs() + 1 - SIZE_MS
        count, total = self._totals.getValue((start,)) or (0, 0.0)
        self._totals.removeKey((start,))
        yield Row(key=key[0], window_start=start, mean=total / count)

    def close(self) -> None:
        """Do nothing."""


def _native(readings: DataFrame) -> DataFrame:
    return (
        readings.groupBy(functions.window("time", f"{SIZE_MS} milliseconds"), "key")
        .agg(
            functions.count("value").alias("count"),
            functions.sum("value").alias("sum"),
            functions.min("value").alias("min"),
            functions.max("value").alias("max"),
            functions.avg("value").alias("mean"),
        )
        .selectExpr("key", "window.start AS window_start", "window.end AS window_end", "count", "mean")
    )


def _distinct(readings: DataFrame) -> DataFrame:
    differing = functions.approx_count_distinct("at", ACCURACY).alias("distinct")
    grouped = readings.groupBy(functions.window("time", f"{SIZE_MS} milliseconds"), "key").agg(differing)
    return grouped.selectExpr("key", "window.start AS window_start", "window.end AS window_end", "distinct")


def _record_by_record(readings: DataFrame) -> DataFrame:
    return readings.groupBy("key").transformWithState(Means(), _MEAN, "Append", "EventTime")


_ROADS: Final = {"native": _native, "distinct": _distinct, "python": _record_by_record}


def _query(spark: SparkSession, data: Path, road: str) -> DataFrame:
    # Otherwise the windows that end in the last micro-batch would not be emitted.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    readings = spark.readStream.schema(_READING).option("maxFilesPerTrigger", 1).parquet(str(data))
    timed = readings.withColumn("time", functions.timestamp_millis("at")).withWatermark("time", "2 seconds")
    return _ROADS[road](timed)


def main() -> None:
    """Run to the end of the input."""
    run_query(__doc__, list(_ROADS), _query)


if __name__ == "__main__":
    main()
