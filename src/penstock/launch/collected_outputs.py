"""Collected outputs: the outputs of a job's sinks without a binding, as records or tables."""

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
from penstock.streams.own_streams import DEAD_LETTERS

__all__ = ["OUTPUTS", "CollectedOutputs", "HasOutputs"]

OUTPUTS: Final = "outputs"
"""The folder in a checkpoint with the collected outputs, by sink."""


class CollectedOutputs:
    """The collected outputs of a checkpoint: those of all its runs, in the order of micro-batches, then of tasks."""

    def __init__(
        self,
        sinks: Mapping[str, RecordType],
        checkpoint: Path,
        dead_letters: Path | None,
        temporary: object = None,
    ) -> None:
        self._sinks: Final = sinks
        # Keeps a temporary folder until nothing refers to it any more.
        self._temporary: Final = temporary
        self._folder: Final = checkpoint / OUTPUTS
        self._dead_letters: Final = dead_letters

    def uri(self, sink: str) -> str:
        """Return the URI to which a collected sink is bound."""
        return f"parquet:{self._folder / sink}"

    def table(self, sink: str) -> pa.Table:
        """Return all records of a sink as an Arrow table. Raises BindingError for a sink that is not collected."""
        record_type = self._type_of(sink)
        tables = [
            pq.read_table(path, columns=list(record_type.field_names), use_threads=False)
            for path in sorted((self._folder / sink).glob("part-*.parquet"))
        ]
        return pa.concat_tables(tables) if tables else record_type.schema.empty_table()

    def records(self, sink: str) -> list[Any]:
        """Return all records of a sink, as objects of its class. Raises BindingError if it is not collected."""
        record_type = self._type_of(sink)
        return [record for batch in self.table(sink).to_batches() for record in record_type.objects(batch)]

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters. Raises BindingError if they are bound to a URI."""
        if self._dead_letters is None:
            raise BindingError(f"{DEAD_LETTERS} has a binding, so it is not collected; read it from there.")
        return [
            msgspec.json.decode(line, type=DeadLetter)
            for path in sorted(self._dead_letters.glob("part-*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]

    def _type_of(self, sink: str) -> RecordType:
        if sink not in self._sinks:
            raise BindingError(
                f"{sink!r} is not a collected sink; the collected sinks are: {', '.join(self._sinks) or 'none'}. "
                "A sink is collected if bindings leaves it out."
            )
        return self._sinks[sink]


class HasOutputs:
    """The base of objects with the outputs of collected sinks: a run has those so far, its result all of them."""

    outputs: CollectedOutputs

    def output(self, sink: str) -> list[Any]:
        """Return the records written to a collected sink, as objects of the stream's class.

        Raises:
            BindingError: the sink is not collected.

        """
        return self.outputs.records(sink)

    def output_table(self, sink: str) -> pa.Table:
        """Return the same as an Arrow table; `.to_pandas()` or `polars.from_arrow` convert it to a frame."""
        return self.outputs.table(sink)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the records that could not be processed, each with the reason.

        Raises:
            BindingError: dead letters are bound to a URI.

        """
        return self.outputs.dead_letters()
