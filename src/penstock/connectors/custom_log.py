"""Own logs: a `RecordLog` of the user's as a log that Spark plans and checkpoints, and that workers read."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.base.durable import write_atomically
from penstock.bindings.types import PythonBinding
from penstock.connectors.custom_class import import_folder, in_custom_class, make_custom
from penstock.connectors.given_record import bytes_of
from penstock.connectors.record_log import RecordLog
from penstock.errors import BindingError, CheckpointError, JobFailedError, RecordsLostError
from penstock.records.types import RecordType
from penstock.sources.base import SourceChunk, Split
from penstock.sources.offset_fields import PARTITIONS, offsets_by_topic

__all__ = ["CustomLog", "open_custom_log"]

# The class is asked for the ends at most this often.
_LOOK_S: Final = 0.1
# Up to this many positions are read by one task.
_POSITIONS_OF_A_TASK: Final = 1_000
_CHUNK_RECORDS: Final = 4_096
_CHUNK_BYTES: Final = 4 << 20


def open_custom_log(binding: PythonBinding, path: Path) -> CustomLog:
    """Return the log of a binding that was checked. A file at `path` keeps where it begins for the checkpoint."""
    try:
        begins = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        with _opened(binding) as own, in_custom_class(binding, "begins"):
            begins = _positions(own.begins(), "begins")
        _keep(path, begins)
    except (OSError, msgspec.MsgspecError) as e:
        raise CheckpointError(
            f"The checkpoint's {path} cannot be read ({e}). Restore it, or delete the checkpoint."
        ) from e
    return CustomLog(binding, begins)


class CustomLog:
    """A `RecordLog` as a `ReplayableLog`. Positions are the next one to read in each partition, by its name."""

    def __init__(self, binding: PythonBinding, begins: Mapping[str, int]) -> None:
        self._binding: Final = binding
        self._begins: Final = dict(begins)
        # The process that plans is on the machine of the driver, but Spark does not give it the code of the job.
        self._code: Final = import_folder(binding)
        self._frozen: dict[str, int] | None = None
        self._look: _Look | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The object of the user's class does not travel.
        return {**self.__dict__, "_look": None}

    def beginning(self) -> dict[str, int]:
        """Return where the checkpoint begins to read. Partitions that are not named begin at 0."""
        return dict(self._begins)

    def encode(self, position: Mapping[str, int]) -> dict[str, Any]:
        """Encode a position as a JSON object."""
        return {PARTITIONS: dict(position)}

    def decode(self, offset: Mapping[str, Any]) -> dict[str, int]:
        """Decode a position. Raises BindingError when it is of a source of another kind."""
        found = offsets_by_topic(offset).get(PARTITIONS)
        if not isinstance(found, Mapping):
            raise BindingError(
                f"Stream {self._binding.stream!r}: the positions of the checkpoint are of another source than "
                f"{self._binding.place}. Bind the stream to the one that it has read, or start without positions."
            )
        return dict(found)

    def latest(self, start: Mapping[str, int], *, limited: bool) -> dict[str, int]:
        """Return the newest position to read up to from `start`; with `limited` at most one micro-batch ahead.

        Raises RecordsLostError when a partition ends before what was read.
        """
        ends = self._ends() if self._frozen is None else self._frozen
        shrunk = next((name for name, at in start.items() if ends.get(name, at) < at), None)
        if shrunk is not None:
            raise RecordsLostError(
                f"Stream {self._binding.stream!r}: the partition {shrunk!r} of {self._binding.place} ends at "
                f"{ends[shrunk]}, but the job has read up to {start[shrunk]}. Restore its records, or start with a new "
                "checkpoint."
            )
        most = self._binding.max_records_per_batch
        begun = {name: start.get(name, self._begins.get(name, 0)) for name in ends}
        found = {name: min(end, begun[name] + most) if limited else end for name, end in ends.items()}
        return {**start, **{name: max(begun[name], at) for name, at in found.items()}}

    def freeze(self) -> None:
        """Fix the ends at the present ones."""
        self._frozen = self._ends()

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parallelism: int) -> list[Split]:
        """Return the parts between two positions, in order."""
        places = [(name, start.get(name, self._begins.get(name, 0)), at) for name, at in sorted(end.items())]
        count = sum(at - begin for _, begin, at in places)
        size = max(_POSITIONS_OF_A_TASK, -(-count // parallelism))
        return [
            Split(name, "", first, min(first + size, at))
            for name, begin, at in places
            for first in range(begin, at, size)
        ]

    def read(self, splits: Sequence[Split], record_type: RecordType) -> Iterator[SourceChunk]:  # noqa: ARG002  # they are raw
        """Yield the records of the splits of one task, in order."""
        with _opened(self._binding) as own:
            for split in splits:
                yield from self._read_split(own, split)

    def _read_split(self, own: RecordLog, split: Split) -> Iterator[SourceChunk]:
        records = self._records(own, split)
        while chunk := _chunk(records):
            offsets, raw = zip(*chunk, strict=True)
            yield SourceChunk(
                split.partition, pa.array(offsets, pa.int64()), raw=pa.array(raw, pa.large_binary())
            )

    def _records(self, own: RecordLog, split: Split) -> Iterator[tuple[int, bytes]]:
        """Yield the records of a split; check that their positions ascend within it."""
        least = split.start
        with in_custom_class(self._binding, "read"):
            for position, record in own.read(split.partition, split.start, split.end):
                if not least <= position < split.end:
                    raise JobFailedError(
                        f"read gave position {position} of the partition {split.partition!r} where {least} to "
                        f"{split.end - 1} were due: positions ascend from the start to before the end."
                    )
                least = position + 1
                yield position, bytes_of(record)

    def forget(self, end: Mapping[str, int]) -> None:
        """Do nothing: the records are not penstock's."""

    def newest(self) -> dict[str, int] | None:
        """Return the ends as they were last seen."""
        return None if self._look is None else self._look.ends

    def lag(self, position: Mapping[str, int]) -> dict[str, Any]:  # noqa: ARG002  # Spark asks `newest`
        """Return nothing: Spark reports the newest position."""
        return {}

    def _ends(self) -> dict[str, int]:
        look = self._look
        if look is None or look.thread != threading.get_ident():
            if look is not None:
                look.close()
            if self._code is not None and self._code not in sys.path:
                sys.path.append(self._code)
            look = self._look = _Look(self._binding)
        return look.at_present()


class _Look:
    """The object of the user's class that plans, and its last answer. It stays in its thread."""

    def __init__(self, binding: PythonBinding) -> None:
        self._binding: Final = binding
        self._own: Final[RecordLog] = make_custom(binding)
        self._seen_s: float | None = None
        self.thread: Final = threading.get_ident()
        self.ends: dict[str, int] | None = None

    def at_present(self) -> dict[str, int]:
        now_s = time.monotonic()
        if self.ends is None or self._seen_s is None or now_s >= self._seen_s + _LOOK_S:
            with in_custom_class(self._binding, "ends"):
                self.ends = _positions(self._own.ends(), "ends")
            self._seen_s = time.monotonic()
        return self.ends

    def close(self) -> None:
        with in_custom_class(self._binding, "close"):
            self._own.close()


@contextmanager
def _opened(binding: PythonBinding) -> Iterator[RecordLog]:
    own: RecordLog = make_custom(binding)
    try:
        yield own
    finally:
        with in_custom_class(binding, "close"):
            own.close()


def _positions(given: Any, method: str) -> dict[str, int]:
    """Return the result of a method. Raises TypeError unless it is a mapping from names to positions."""
    try:
        return msgspec.convert(given, dict[str, int])
    except msgspec.ValidationError as e:
        raise TypeError(
            f"{method} returns a mapping from partitions to whole numbers, and not this: {e}"
        ) from e


def _chunk(records: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the next records, up to a number and a size; none at the end."""
    found, size = [], 0
    for one in itertools.islice(records, _CHUNK_RECORDS):
        found.append(one)
        size += len(one[1])
        if size >= _CHUNK_BYTES:
            break
    return found


def _keep(path: Path, begins: Mapping[str, int]) -> None:
    try:
        write_atomically(path, msgspec.json.encode(begins))
    except OSError as e:
        raise CheckpointError(
            f"The checkpoint cannot record where a stream begins: {path} ({e}). Choose a folder that can be written "
            "with --checkpoint."
        ) from e
