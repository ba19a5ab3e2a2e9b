"""Batch outcome: the result of one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.base.instants import EPOCH
from penstock.control.encoded_receipts import Batch, BatchReceipts, encode_receipts
from penstock.control.receipts import Receipt, StepTime
from penstock.errors import UnknownIdError
from penstock.operators.record_blocks import DeadLetter
from penstock.runtime.packed_rows import (
    DEAD_LETTERS,
    RECEIPT_COLUMNS,
    REPORTS,
    TIME,
    decode_receipt_columns,
    reports_of,
    time_of,
)
from penstock.testing.memory_sinks import Written

__all__ = ["BatchOutcome", "TaskReport"]

TaskReport: TypeAlias = tuple[str, str, int, int, bytes]
"""A report from a task to the driver: kind, name, partition, total and body, as defined in `runtime.writer`."""


@dataclass
class BatchOutcome:
    """The result of one micro-batch: outputs, dead letters, receipts and counts.

    Args:
        number: the number of the micro-batch, from 0.
        sinks: what each sink received, by name, including `dead-letters`. Sinks that received nothing are left out.
        reports: the reports of the tasks to the driver, for tests of internals.
        records_before: the number of records that each step had processed before this micro-batch.
        sink_names: the names of all sinks.

    """

    number: int
    sinks: Mapping[str, Written]
    reports: list[TaskReport] = field(default_factory=list)
    records_before: Mapping[str, int] = field(default_factory=dict)
    sink_names: Sequence[str] = ()

    def output(self, sink: str) -> list[Any]:
        """Return the records that were written to a sink, as objects of its schema.

        Raises:
            UnknownIdError: the job has no such sink.

        """
        if sink not in self.sink_names:
            raise UnknownIdError(f"The job has no sink {sink!r}; it has {', '.join(self.sink_names)}.")
        return self.sinks[sink].records if sink in self.sinks else []

    @property
    def outputs(self) -> dict[str, list[Any]]:
        """The records by sink, for the sinks that received any. Dead letters are not included."""
        return {name: written.records for name, written in self.sinks.items() if name != DEAD_LETTERS}

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The records that could not be processed, each with the reason, its source position and its bytes."""
        return self.output(DEAD_LETTERS)

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of the commands, in command order."""
        columns = [
            some
            for kind, _, _, _, body in self.reports
            if kind == RECEIPT_COLUMNS
            for some in decode_receipt_columns(body)
        ]
        slots = [reports_of(body) for kind, _, _, _, body in self.reports if kind == REPORTS]
        at = max((at for at, _, _ in slots), default=EPOCH)
        together = encode_receipts(
            (one for _, some, _ in slots for one in some), Batch(self.number, at, self.records_so_far)
        )
        return BatchReceipts.of(columns, together).receipts

    @property
    def records_so_far(self) -> dict[str, int]:
        """The number of records that each step has processed, up to and including this micro-batch."""
        found = dict(self.records_before)
        for step, count in self.counts("records").items():
            found[step] = found.get(step, 0) + count
        return found

    @property
    def data(self) -> dict[str, Any]:
        """Every byte that the sinks received. A replay must produce the same."""
        return {name: written.data for name, written in self.sinks.items()}

    def counts(self, kind: str) -> dict[str, int]:
        """Return the tasks' counts of one kind, such as "in", "records" or "late", by stream or step."""
        found: dict[str, int] = {}
        for report_kind, name, _, total, _ in self.reports:
            if report_kind == kind:
                found[name] = found.get(name, 0) + total
        return found

    def times(self, step: str) -> set[StepTime]:
        """Return the event time that the slots of a step have reported, and what holds it back."""
        return {time_of(body) for kind, name, _, _, body in self.reports if (kind, name) == (TIME, step)}

    def watermarks(self, step: str, other: BatchOutcome) -> tuple[set[int | None], set[int | None]]:
        """Return the watermarks of the step's slots here and in another outcome; empty unless slots ran in both."""
        one, more = ({time.watermark_ms for time in result.times(step)} for result in (self, other))
        return (one, more) if one and more else (set(), set())
