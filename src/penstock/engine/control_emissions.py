"""Control emissions: the records that commands and broadcast control records emit, with their keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.base.instants import milliseconds_of
from penstock.engine.emission_causes import Causes, place_name
from penstock.engine.function_instance import FunctionInstance
from penstock.engine.step import MAIN, Emission
from penstock.errors import SchemaError
from penstock.operators.error_reasons import misfit_reason
from penstock.operators.record_blocks import DeadLetter
from penstock.records.schemas import VERSION_FIELD
from penstock.records.types import RecordType

__all__ = ["Emissions", "Emitted", "Origin"]

Origin = Callable[[str], DeadLetter]


class Emitted(NamedTuple):
    """An emitted record, with the key, version and time it was emitted under, and a function for its dead letter."""

    output: str
    record: Any
    key: Any
    version: int | None
    time: dt.datetime | None
    origin: Origin


class Emissions:
    """The records emitted so far, in order. Records emitted outside of a key are only kept in the first slot."""

    def __init__(self, instance: FunctionInstance, *, first: bool) -> None:
        self._instance: Final = instance
        self._first: Final = first
        self._found: list[Emitted] = []
        self.origin: Origin | None = None

    def side_output(self, name: str, record: Any) -> None:
        """Emit a record to an output."""
        cursor = self._instance.cursor
        key = cursor.key
        if key is None and not self._first:
            return
        version = self._instance.version() if self._instance.core.stamped else None
        assert self.origin is not None
        self._found.append(Emitted(name, record, key, version, cursor.time, self.origin))

    def __len__(self) -> int:
        return len(self._found)

    def forget(self, count: int) -> None:
        """Keep only the first `count` records."""
        del self._found[count:]

    def outputs(self) -> list[str]:
        """Return the outputs with records."""
        return list(dict.fromkeys(one.output for one in self._found))

    def emission(self, output: str, letters: list[DeadLetter]) -> Emission | None:
        """Return the records of one output as a batch; None if empty. Records that do not fit become dead letters."""
        core = self._instance.core
        found = [one for one in self._found if one.output == output]
        output_type = core.outputs.get(output)
        if output_type is None:
            reason = f"step {core.step!r} emitted a record but declares no output"
            letters += [one.origin(reason) for one in found]
            return None
        try:
            batch = output_type.batch([one.record for one in found])
        except SchemaError:
            found = [one for one in found if _fits(one, output_type, letters)]
            batch = output_type.batch([one.record for one in found])
        if not found:
            return None
        if core.stamped and output == MAIN:
            batch = batch.append_column(VERSION_FIELD, pa.array([one.version for one in found], pa.int64()))
        keys = pa.array([one.key for one in found], core.key_type)
        times = None
        if output in core.timed:
            effective = [None if one.time is None else milliseconds_of(one.time) for one in found]
            times = pa.array(effective, pa.int64())
        causes = _causes(found) if output in core.caused else None
        return Emission(output, batch, keys, times, causes)


def _causes(found: list[Emitted]) -> Causes:
    """Return the causes of records. Places include the key: one record may cause those of many keys, in any order."""
    letters = [one.origin("") for one in found]
    places = [
        place_name(
            letter.stream, letter.partition, "" if one.key is None else msgspec.json.encode(one.key).decode()
        )
        for letter, one in zip(letters, found, strict=True)
    ]
    return Causes(pa.array(places, pa.string()), pa.array([letter.offset for letter in letters], pa.int64()))


def _fits(one: Emitted, output_type: RecordType, letters: list[DeadLetter]) -> bool:
    try:
        output_type.batch([one.record])
    except SchemaError as e:
        letters.append(one.origin(misfit_reason(one.record, output_type, e)))
        return False
    return True
