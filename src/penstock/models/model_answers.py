"""Answers: the outputs of a model for some records, version by version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.model import BatchPlace, RecordPlace

__all__ = ["Answer", "is_record", "repeat_text"]


@dataclass(frozen=True)
class Answer:
    """The scores of records, the versions that made them, and the place of each one's among these.

    `missing` is a mask of the records without a score; None if all have one.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    versions: Sequence[str | None]
    by: npt.NDArray[np.intp]
    missing: npt.NDArray[np.bool_] | None = None

    def version_texts(self, prefix: str = "") -> pa.StringArray:
        """Return the version of each record as a column of text."""
        texts = [f"{prefix}{name or ''}" for name in self.versions]
        if len(texts) == 1:
            return repeat_text(texts[0], len(self.by))
        return pa.array(texts, pa.string()).take(pa.array(self.by))


def is_record(ctx: BatchPlace | RecordPlace) -> TypeGuard[RecordPlace]:
    """Return whether a context is that of a single record. Faster than a check of the protocol."""
    return getattr(ctx, "key_indices", None) is None


def repeat_text(text: str, count: int) -> pa.StringArray:
    """Return a column of the same text, in less time than Arrow takes for it."""
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data * count))
