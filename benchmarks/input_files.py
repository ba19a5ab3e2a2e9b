"""Input files: tables as files of a folder, each of which becomes the input of one micro-batch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["write_parts"]


def write_parts(folder: Path, parts: Iterable[pa.Table]) -> None:
    """Write tables to files of a new folder, in the order in which Spark and penstock read them."""
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(part, path)
        # Spark's file source sorts by modification time, penstock's by name.
        os.utime(path, (number, number))
