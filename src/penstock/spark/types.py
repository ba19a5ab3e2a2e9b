"""Spark's types that higher rooms name, pass on or catch."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no stubs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SPARK_ERRORS", "SparkSession", "StreamingQuery"]

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
"""Errors of Spark, and those in Java that PySpark does not convert, of formats and at the start of a query."""
