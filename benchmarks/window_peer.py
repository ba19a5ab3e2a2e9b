"""Spark's own windows, as the peer of the benchmark of windows: groupBy(window), or plain Python for each record."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pyspark.sql import SparkSession, functions

from benchmarks.window_jobs import SIZE_MS

__all__ = ["main"]

_DDL = "key BIGINT, at BIGINT, value DOUBLE"


def main() -> None:
    """Run to the end of the input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readings", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.master(f"local[{arguments.cores}]")
        .config("spark.sql.shuffle.partitions", arguments.cores)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    readings = spark.readStream.schema(_DDL).option("maxFilesPerTrigger", 1).parquet(str(arguments.readings))
    means = (
        readings.withColumn("time", functions.timestamp_millis("at"))
        .withWatermark("time", "2 seconds")
        .groupBy(functions.window("time", f"{SIZE_MS} milliseconds"), "key")
        .agg(
            functions.count("value").alias("count"),
            functions.sum("value").alias("sum"),
            functions.min("value").alias("min"),
            functions.max("value").alias("max"),
            functions.avg("value").alias("mean"),
        )
        .selectExpr("key", "window.start AS window_start", "window.end AS window_end", "count", "mean")
    )
    query = (
        means.writeStream.format("parquet")
        .option("checkpointLocation", str(arguments.checkpoint))
        .trigger(availableNow=True)
        .start(str(arguments.out))
    )
    query.awaitTermination()
    print(json.dumps({"batches": query.lastProgress["batchId"] + 1 if query.lastProgress else 0}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
