"""The binding of a format of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SparkBinding"]


@dataclass(frozen=True)
class SparkBinding:
    """Data that a format of Spark loads once, before the stream begins, or writes. `uri` has secrets masked.

    `options` are those of the format, whose values may be references; `path` is the place that it loads or writes. A
    sink adds the number of the micro-batch in the column `batch_field`.
    """

    stream: str
    uri: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    batch_field: str | None = None
