"""Errors of Spark's formats: their types, and the reason and advice for the user."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no stubs
from pyspark.errors import PySparkException

__all__ = ["FORMAT_ERRORS", "JARS_ADVICE", "format_reason"]

FORMAT_ERRORS: Final = (PySparkException, Py4JJavaError)
"""Formats raise errors of their own in Java, which PySpark does not convert."""
JARS_ADVICE: Final = (
    "If the format is not one of Spark's own, name its jars: --spark spark.jars=PATH, or --spark "
    "spark.jars.packages=GROUP:NAME:VERSION."
)
_MAX_REASON: Final = 300


def format_reason(error: Exception) -> str:
    """Return the first line of the message of an error."""
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return next(iter(str(message).strip().splitlines()), "")[:_MAX_REASON]
