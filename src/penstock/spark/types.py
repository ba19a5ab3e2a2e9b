"""Spark's types that higher rooms name, pass on or catch."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["PySparkException", "SparkSession", "StreamingQuery"]
