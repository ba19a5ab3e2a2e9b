"""Errors of Spark's formats: the reason and advice for the user."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no stubs

__all__ = ["JARS_ADVICE", "format_reason"]

JARS_ADVICE: Final = (
    "If the format is not one of Spark's own, name its jars: --spark spark.jars=PATH, or --spark "
    "spark.jars.packages=GROUP:NAME:VERSION."
)
_MAX_REASON: Final = 300


def format_reason(error: Exception) -> str:
    """Return the first line of the message of an error."""
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return next(iter(str(message).strip().splitlines()), "")[:_MAX_REASON]
