"""Collected outputs: what left through the sinks of a job that are bound to nothing else, as records or tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import BindingError
from penstock.operators.record_blocks import DeadLetter
from penstock.records.types import RecordType
from penstock.streams.graph import DEAD_LETTERS

__all__ = ["OUTPUTS", "CollectedOutputs"]

OUTPUTS: Final = "outputs"
"""The folder in a checkpoint with what was collected, by sink."""


class CollectedOutputs:
    """The outputs of a checkpoint: those of all its runs, by micro-batch, and within one by task."""

    def __init__(
        self,
        sinks: Mapping[str, RecordType],
        checkpoint: Path,
        dead_letters: Path | None,
        temporary: object = None,
    ) -> None:
        self._sinks: Final = sinks
        # The folder goes with the last who may look at it.
        self._temporary: Final = temporary
        self._folder: Final = checkpoint / OUTPUTS
        self._dead_letters: Final = dead_letters

    def uri(self, sink: str) -> str:
        """What a sink is bound to whose records are collected."""
        return f"parquet:{self._folder / sink}"

    def table(self, sink: str) -> pa.Table:
        """All records of a sink as an Arrow table. BindingError for a sink that is bound to something else."""
        record_type = self._type_of(sink)
        tables = [
            pq.read_table(path, columns=list(record_type.field_names), use_threads=False)
            for path in sorted((self._folder / sink).glob("part-*.parquet"))
        ]
        return pa.concat_tables(tables) if tables else record_type.schema.empty_table()

    def records(self, sink: str) -> list[Any]:
        """All records of a sink, as objects of its class."""
        record_type = self._type_of(sink)
        return [record for batch in self.table(sink).to_batches() for record in record_type.objects(batch)]

    def dead_letters(self) -> list[DeadLetter]:
        """The records that were set aside."""
        if self._dead_letters is None:
            raise BindingError(f"{DEAD_LETTERS} is bound to a place of its own; look there.")
        return [
            msgspec.json.decode(line, type=DeadLetter)
            for path in sorted(self._dead_letters.glob("part-*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]

    def _type_of(self, sink: str) -> RecordType:
        if sink not in self._sinks:
            raise BindingError(
                f"{sink!r} is not a sink whose records are collected; these are "
                f"{', '.join(self._sinks) or 'none'}. A sink is collected when bindings leaves it out."
            )
        return self._sinks[sink]
