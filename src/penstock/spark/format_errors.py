"""Errors of Spark's formats: the reason that a sentence for the user quotes."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no stubs

__all__ = ["format_reason"]

_MAX_REASON: Final = 300


def format_reason(error: Exception) -> str:
    """Return the first line of the message of an error of Spark, or of one from Java that PySpark does not convert."""
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return next(iter(str(message).strip().splitlines()), "")[:_MAX_REASON]
