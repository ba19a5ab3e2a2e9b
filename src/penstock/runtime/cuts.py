"""Cuts: where each stream ended in each micro-batch, read from Spark's own offset log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Cut", "read_cut", "read_cuts", "write_stream_order"]

_ORDER_FILE = "streams.json"


@dataclass(frozen=True)
class Cut:
    """The end of each stream in one micro-batch.

    For folders and journals the end is a position (files or bytes read so far), for Kafka the next offset by
    partition.
    """

    batch_id: int
    ends: dict[str, int | dict[int, int]]


def write_stream_order(checkpoint: Path, streams: Sequence[str], first_batch: int = 0) -> None:
    """Note in which order the streams stand in Spark's offset log, and the number of what Spark calls batch 0."""
    # Whole or not at all, since it may be read at any moment.
    new = checkpoint / f".{_ORDER_FILE}.new"
    new.write_text(json.dumps({"streams": list(streams), "first_batch": first_batch}))
    new.replace(checkpoint / _ORDER_FILE)


def read_cuts(checkpoint: str | Path) -> list[Cut]:
    """The cuts of the batches that the checkpoint still knows, oldest first."""
    folder = Path(checkpoint)
    found = sorted(int(path.name) for path in (folder / "offsets").glob("[0-9]*") if path.name.isdigit())
    first = _order(folder)["first_batch"] if found else 0
    return [read_cut(folder, first + batch_id) for batch_id in found]


def read_cut(checkpoint: Path, batch_id: int) -> Cut:
    """The cut of one batch."""
    order = _order(checkpoint)
    lines = (checkpoint / "offsets" / str(batch_id - order["first_batch"])).read_text().splitlines()
    # The file holds a version line, a line of metadata, then one line for each source.
    offsets = lines[2:]
    return Cut(
        batch_id,
        {
            name: _end(json.loads(line))
            for name, line in zip(order["streams"], offsets, strict=True)
            if line != "-"
        },
    )


def _order(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / _ORDER_FILE).read_text())
    return found


def _end(offset: dict[str, Any]) -> int | dict[int, int]:
    if "position" in offset:
        return int(offset["position"])
    (partitions,) = offset.values()
    return {int(partition): int(end) for partition, end in partitions.items()}
