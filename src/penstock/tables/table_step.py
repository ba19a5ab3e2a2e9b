"""Table steps: the functions of steps that compute tables, on the states and records of many keys at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.functions import ProcessFunction
from penstock.records.types import RecordType
from penstock.state.timeline import Domain

__all__ = ["NO_TIME", "TableInput", "TableResult", "TableStep", "latest_times"]

Ints = npt.NDArray[np.int64]

NO_TIME: Final = -(2**63)
"""The event time of a record without one."""


@dataclass(frozen=True)
class TableInput:
    """The input of a run: the records of some keys, and the stored states of these keys.

    `slots` has the place of each record's key among `keys`, `times_ms` its event time if the step has one, and
    `stored` a column for each state, with a row for each key. `watermark_ms` is that before the records. Unless
    `wants_before`, nobody reads the row before an update.
    """

    keys: pa.Array
    slots: Ints
    batch: pa.RecordBatch
    times_ms: Ints | None
    stored: Mapping[str, pa.Array]
    watermark_ms: int | None
    wants_before: bool = True


@dataclass
class TableResult:
    """The result of a run: the emitted records, the slot of each, and the states that replace the stored ones.

    `changed` are the slots whose states differ; None for all. `times_ms` are the event times of the records, if there
    are any. `side` has records for side outputs: their rows in the input. `failures` are reasons for dead letters, with
    the slot of their key.
    """

    batch: pa.RecordBatch | None
    slots: Ints
    stored: Mapping[str, pa.Array]
    times_ms: Ints | None = None
    side: dict[str, Ints] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    changed: Ints | None = None


class TableStep(ProcessFunction):
    """The function of a step that computes a table. `engine.table_run` calls it.

    `output` is the type of the emitted records. A step that waits for the watermark has the state `waiting_state`, from
    which `earliest` tells when the first record of each key is due.
    """

    output: RecordType
    waiting_state: ClassVar[str | None] = None

    def update(self, given: TableInput) -> TableResult:
        """Process records."""
        raise NotImplementedError

    def earliest(self, rows: pa.RecordBatch, domain: Domain) -> tuple[Ints, pa.Array]:
        """Return when the first waiting record of each key is due, in microseconds since 1970, and these keys."""
        raise NotImplementedError

    def advance(self, given: TableInput, watermark_ms: int) -> TableResult:
        """Emit the rows that a watermark releases. `given` has no records."""
        raise NotImplementedError


def latest_times(given: TableInput, slots: Ints) -> Ints | None:
    """Return for each change the latest event time among the records of its group."""
    if given.times_ms is None:
        return None
    latest = np.full(len(given.keys), NO_TIME, np.int64)
    np.maximum.at(latest, given.slots, given.times_ms)
    return latest[slots]
