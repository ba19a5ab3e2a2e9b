"""Spark's own SQL, as the peer of the benchmark of SQL: a query of streams, or of tables in one batch.

This is not a benchmark by itself: `benchmarks.sql_speed` starts it. Spark has the settings of a user who knows it: as
many partitions as cores, and state in memory.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession, functions

from benchmarks.sql_statements import QUERIES
from penstock.machine.java import find_java

__all__ = ["main"]

_MEMORY: Final = "6g"


def main() -> None:
    """Run the query of the command line to the end of its input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("query", choices=list(QUERIES))
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--batch", action="store_true", help="plain tables in place of streams")
    arguments = parser.parse_args()
    query = QUERIES[arguments.query]
    os.environ["JAVA_HOME"] = str(find_java().home)
    builder = SparkSession.builder.master(f"local[{arguments.cores}]").appName("peer")
    for name, value in {
        "spark.sql.shuffle.partitions": str(arguments.cores),
        "spark.driver.memory": _MEMORY,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    batch = arguments.batch or query.why_batch is not None
    for name, source in query.sources.items():
        folder = str(arguments.data / name)
        if batch:
            rows = spark.read.schema(source.columns).parquet(folder)
        else:
            rows = spark.readStream.schema(source.columns).parquet(folder)
        rows = rows.withColumn("ts", functions.timestamp_millis(source.time))
        if not batch:
            rows = rows.withWatermark("ts", f"{source.delay_s} seconds")
        rows.createOrReplaceTempView(name)
    found = spark.sql(query.spark)
    if batch:
        found.write.mode("overwrite").parquet(str(arguments.output))
    else:
        writer = found.writeStream.format("parquet").option("path", str(arguments.output))
        writer = writer.option("checkpointLocation", str(arguments.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
