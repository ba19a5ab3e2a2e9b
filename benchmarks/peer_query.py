"""Peer queries: run a query of Spark's own to the end of its input, with penstock's Spark settings.

Those are the same state store, file system and number of partitions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.session import SessionSettings, open_session

__all__ = ["run_query"]


def run_query(
    about: str | None,
    kinds: Sequence[str],
    query: Callable[[SparkSession, Path, str], DataFrame],
    *,
    updates: bool = False,
) -> None:
    """Run the kind of query that the command line names on its folder of data.

    If it `updates` rows, each micro-batch writes its rows to a folder of its own, since files only take new ones.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    arguments.checkpoint.mkdir(parents=True)
    settings = SessionSettings(
        app_name="peer",
        master=f"local[{arguments.cores}]",
        parallelism=arguments.cores,
        log_file=arguments.checkpoint / "spark.log",
    )
    with open_session(settings) as spark:
        writer = query(spark, arguments.data, arguments.kind).writeStream
        if updates:
            writer = writer.outputMode("update").foreachBatch(
                lambda rows, number: rows.write.parquet(f"{arguments.output}/{number:06d}")
            )
        else:
            writer = writer.format("parquet").option("path", str(arguments.output))
        writer = writer.option("checkpointLocation", str(arguments.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()
    print("{}", flush=True)
