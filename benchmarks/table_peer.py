"""Spark's own totals of groups, as the peer of the benchmark of tables: groupBy and agg, in update mode.

This is not a benchmark by itself: `benchmarks.tables` starts it.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.peer_query import run_query
from benchmarks.table_jobs import READING

__all__ = ["main"]


def _query(spark: SparkSession, data: Path, kind: str) -> DataFrame:  # noqa: ARG001  # there is one
    readings = spark.readStream.schema(READING).option("maxFilesPerTrigger", 1).parquet(str(data))
    return readings.groupBy("key").agg(
        functions.count("*").alias("count"),
        functions.sum("value").alias("sum"),
        functions.avg("value").alias("mean"),
        functions.max("value").alias("max"),
    )


def main() -> None:
    """Run to the end of the input."""
    run_query(__doc__, ["totals"], _query, updates=True)


if __name__ == "__main__":
    main()
