"""Slots depend on Spark's hash partitioning, so Spark itself is asked where each slot goes."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from penstock.runtime.slots import slot_keys, spark_hash


def test_spark_places_every_slot_in_its_partition(spark: SparkSession) -> None:
    """The hash of integers equals Spark's, and a shuffle brings slot `i` to task `i`."""
    values = [*range(-50, 200), 2**31 - 1, -(2**31)]
    numbers = spark.createDataFrame([(value,) for value in values], "value INT")
    found = {row.value: row.hash for row in numbers.select("value", f.hash("value").alias("hash")).collect()}
    assert found == {value: spark_hash(value) for value in values}
    for parallelism in (1, 2, 5, 64):
        slots = spark.createDataFrame([(key,) for key in slot_keys(parallelism)], "slot INT")
        placed = (
            slots.repartition(parallelism, "slot")
            .select("slot", f.spark_partition_id().alias("task"))
            .collect()
        )
        assert {row.task: row.slot for row in placed} == dict(enumerate(slot_keys(parallelism)))
