"""Encoded receipts: tasks encode the reports of slots, and the driver sorts them in the order of the commands.

Thousands of commands a second may be applied by one slot each. Tasks encode their receipts as columns, many at a time,
and the driver sorts them without decoding.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.control.commands import AT_ONCE
from penstock.control.receipts import Receipt, RecordPosition, Report, Trace, slowest_time

__all__ = [
    "Applied",
    "Batch",
    "BatchReceipts",
    "EncodedReceipts",
    "ReceiptColumns",
    "encode_receipts",
    "id_hash",
    "receipt_columns",
]

_MAX_REPLIES: Final = 1000
# The receipts of this many commands stay far below 2 GiB, the limit of an Arrow column.
_MAX_AT_ONCE: Final = 50_000
_encoder: Final = msgspec.json.Encoder()
_receipts_decoder: Final = msgspec.json.Decoder(Receipt)
_codec: Final = pa.Codec("lz4_raw")
# The characters that msgspec escapes in JSON.
_ESCAPED: Final = r'["\\\x00-\x1f]'


@dataclass(frozen=True)
class Batch:
    """A micro-batch: its number, its time, and the number of records that each step has processed by its end."""

    number: int
    at: dt.datetime
    records: Mapping[str, int] = field(default_factory=dict)


class Applied(msgspec.Struct, array_like=True, gc=False):
    """Commands of one source partition that a single slot has applied, as columns.

    `key_groups` and `keys` are the numbers of those that each command has touched, at least one.
    """

    stream: str
    partition: str
    offsets: list[int] = []
    ids: list[str] = []
    kinds: list[str] = []
    targets: list[str] = []
    versions: list[int | None] = []
    issued_by: list[str] = []
    key_groups: list[int] = []
    keys: list[int] = []

    def add(self, report: Report) -> None:
        """Add a command from the report of the slot."""
        self.offsets.append(report.place.offset)
        self.ids.append(report.id)
        self.kinds.append(report.kind)
        self.targets.append(report.target)
        self.versions.append(report.version)
        self.issued_by.append(report.issued_by)
        self.key_groups.append(len(report.key_groups))
        self.keys.append(report.keys)

    def add_sets(
        self, offsets: Sequence[int], ids: Sequence[str], targets: Sequence[str], issued_by: Sequence[str]
    ) -> None:
        """Add commands `set` without a version, each of which has touched a single key."""
        count = len(ids)
        self.offsets += offsets
        self.ids += ids
        self.kinds += ["set"] * count
        self.targets += targets
        self.versions += [None] * count
        self.issued_by += issued_by
        self.key_groups += [1] * count
        self.keys += [1] * count

    def parts(self, size: int) -> Iterator[Applied]:
        """Yield the same in parts of at most `size` commands."""
        columns = msgspec.structs.astuple(self)[2:]
        for start in range(0, len(self.ids), size):
            yield Applied(self.stream, self.partition, *(column[start : start + size] for column in columns))


class EncodedReceipts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The receipts of one command in a micro-batch as JSON Lines, and its position, the sort key.

    `outcome` is the last status; empty if it does not count, because the command already had one.
    """

    place: RecordPosition
    id: str
    outcome: str
    lines: bytes

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts."""
        return _receipts_decoder.decode_lines(self.lines)


class ReceiptColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The receipts of some commands of one source partition, as columns.

    The columns are `offsets` (int64), `hashes` of the ids (uint64) and `sizes`, the bytes of each command's receipts
    (int32). `packed` has all receipts, compressed from `size` bytes. `outcomes` counts the commands by last status.
    """

    stream: str
    partition: str
    offsets: bytes
    hashes: bytes
    sizes: bytes
    packed: bytes
    size: int
    outcomes: dict[str, int]

    @property
    def lines(self) -> pa.Array:
        """The receipts of each command."""
        sizes = np.frombuffer(self.sizes, "<i4")
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        lines = _codec.decompress(self.packed, self.size)
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(sizes), [None, pa.py_buffer(ends), lines]
        )


@dataclass(frozen=True)
class BatchReceipts:
    """All receipts of a micro-batch in the order of the commands, and the hash of each command's id.

    `outcomes` counts the commands by their last status. `together` has the receipts of commands that several slots
    report.
    """

    lines: bytes = b""
    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    outcomes: Mapping[str, int] = field(default_factory=dict)
    together: Sequence[EncodedReceipts] = ()

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts."""
        return _receipts_decoder.decode_lines(self.lines)

    @classmethod
    def of(cls, columns: Iterable[ReceiptColumns], together: Sequence[EncodedReceipts] = ()) -> BatchReceipts:
        """Sort the receipts that tasks have encoded together with those in `together`."""
        by_place: dict[tuple[str, str], list[ReceiptColumns]] = {}
        outcomes: Counter[str] = Counter()
        for some in [*columns, *_columns_of(together)]:
            by_place.setdefault((some.stream, some.partition), []).append(some)
            outcomes.update(some.outcomes)
        found = [_sort_parts(by_place[place]) for place in sorted(by_place)]
        hashes = [hashes for _, hashes in found] or [np.empty(0, np.uint64)]
        lines = b"".join(lines for lines, _ in found)
        return cls(lines, np.concatenate(hashes), dict(sorted(outcomes.items())), together)


def id_hash(command_id: str) -> int:
    """Return the hash that finds the receipts of a command."""
    return int(xxhash.xxh3_64_intdigest(command_id.encode()))


def receipt_columns(
    reports: Iterable[Report], applied: Iterable[Applied], batch: Batch
) -> list[ReceiptColumns]:
    """Encode the receipts of commands that a single slot reports, in any order."""
    found: dict[tuple[str, str], Applied] = {}
    others: list[Report] = []
    for report in reports:
        if _is_plain(report):
            place = report.place.stream, report.place.partition
            found.setdefault(place, Applied(*place)).add(report)
        else:
            others.append(report)
    columns = [
        _encode_applied(part, batch)
        for some in [*applied, *found.values()]
        for part in some.parts(_MAX_AT_ONCE)
    ]
    return [*columns, *_columns_of(encode_receipts(others, batch))]


def _is_plain(report: Report) -> bool:
    """Return whether columns have all fields of the receipts."""
    touches = report.outcome == "applied" and report.keys and report.key_groups
    return bool(touches and not report.replies and report.apply == AT_ONCE)


def encode_receipts(reports: Iterable[Report], batch: Batch) -> list[EncodedReceipts]:
    """Encode the receipts of a micro-batch in the order of the commands. The reports may be in any order.

    A command that repeats an earlier one has no receipts. A command that was not admitted is ACCEPTED (it was read) and
    REJECTED. The others are ACCEPTED, VALIDATED, and APPLIED or DEGRADED. An earlier command that is undone is DEGRADED
    after those of the command that undoes it, and counts no second time.
    """
    commands: dict[tuple[RecordPosition, bool], list[Report]] = {}
    for report in reports:
        commands.setdefault((report.place, report.outcome == "undone"), []).append(report)
    found = []
    for place, is_undone in sorted(commands):
        receipts = _receipts(commands[place, is_undone], batch)
        if receipts:
            outcome = "" if is_undone else receipts[-1].status
            found.append(EncodedReceipts(place, receipts[0].id, outcome, _encoder.encode_lines(receipts)))
    return found


def _sort_parts(parts: Sequence[ReceiptColumns]) -> tuple[bytes, npt.NDArray[np.uint64]]:
    """Sort the receipts of one source partition, and the hashes of their commands, by offset."""
    offsets = np.concatenate([np.frombuffer(part.offsets, "<i8") for part in parts])
    hashes = np.concatenate([np.frombuffer(part.hashes, "<u8") for part in parts])
    order = np.argsort(offsets, kind="stable")
    lines = pa.concat_arrays([part.lines for part in parts]).take(pa.array(order))
    return _content(lines).to_pybytes(), hashes[order]


def _content(lines: pa.Array) -> pa.Buffer:
    """Return the bytes of all lines, concatenated."""
    sizes = pc.binary_length(lines)
    return lines.buffers()[2].slice(0, pc.sum(sizes, min_count=0).as_py())


def _columns_of(some: Iterable[EncodedReceipts]) -> list[ReceiptColumns]:
    by_place: dict[tuple[str, str], list[EncodedReceipts]] = {}
    for one in some:
        by_place.setdefault((one.place.stream, one.place.partition), []).append(one)
    return [
        _columns(
            place,
            [one.place.offset for one in found],
            [one.id for one in found],
            pa.array([one.lines for one in found], pa.binary()),
            Counter(one.outcome for one in found if one.outcome),
        )
        for place, found in by_place.items()
    ]


def _columns(
    place: tuple[str, str],
    offsets: Sequence[int],
    ids: Sequence[str],
    lines: pa.Array,
    outcomes: Mapping[str, int],
) -> ReceiptColumns:
    content = _content(lines)
    return ReceiptColumns(
        *place,
        np.array(offsets, "<i8").tobytes(),
        np.array([id_hash(one) for one in ids], "<u8").tobytes(),
        pc.binary_length(lines).to_numpy().astype("<i4").tobytes(),
        _codec.compress(content, asbytes=True),
        content.size,
        dict(outcomes),
    )


def _encode_applied(applied: Applied, batch: Batch) -> ReceiptColumns:
    """Encode the receipts of commands that one slot has applied, as `_receipts` would."""
    known = [
        ',"kind":"',
        _texts(applied.kinds),
        '","target":"',
        _texts(applied.targets),
        '","version":',
        pc.fill_null(pa.array(applied.versions, pa.int64()).cast(pa.string()), "null"),
        ',"issued_by":"',
        _texts(applied.issued_by),
        f'","batch":{batch.number},"at":{_encoder.encode(batch.at).decode()}',
    ]
    begin = ['{"id":"', _texts(applied.ids), '","status":"']
    counts = [
        ',"key_groups":',
        pa.array(applied.key_groups, pa.int64()).cast(pa.string()),
        ',"keys":',
        pa.array(applied.keys, pa.int64()).cast(pa.string()),
    ]
    parts = [
        *[*begin, 'ACCEPTED"', *known, "}\n"],
        *[*begin, 'VALIDATED"', *known, "}\n"],
        *[*begin, 'APPLIED"', *known, *counts, "}\n"],
    ]
    lines = pc.binary_join_element_wise(*_join_constants(parts), "")
    outcomes = {"APPLIED": len(applied.ids)}
    return _columns((applied.stream, applied.partition), applied.offsets, applied.ids, lines, outcomes)


def _join_constants(parts: Iterable[Any]) -> list[Any]:
    """Return the parts with consecutive constants joined into one."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


def _texts(values: Sequence[str]) -> Any:
    """Return texts as they are between quotes in JSON, or a single text if all are the same."""
    if len(set(values)) == 1:
        return _encoder.encode(values[0]).decode()[1:-1]
    found = pa.array(values, pa.string())
    if pc.any(pc.match_substring_regex(found, _ESCAPED)).as_py():
        found = pa.array([_encoder.encode(value).decode()[1:-1] for value in values], pa.string())
    return found


def _receipts(reports: list[Report], batch: Batch) -> list[Receipt]:
    outcomes = {report.outcome for report in reports}
    if outcomes == {"duplicate"}:
        return []
    first = reports[0]
    known = (first.kind, first.target, first.version, first.issued_by, batch.number, batch.at)
    receipt = functools.partial(Receipt, apply=first.apply)
    if outcomes == {"undone"}:
        return [receipt(first.id, "DEGRADED", *known, first.reason)]
    accepted = receipt(first.id, "ACCEPTED", *known)
    if outcomes <= {"refused", "duplicate"}:
        reason = min(report.reason for report in reports if report.outcome == "refused")
        return [accepted, receipt(first.id, "REJECTED", *known, reason)]
    validated = receipt(first.id, "VALIDATED", *known)
    counts = (
        len({group for report in reports for group in report.key_groups}),
        sum(report.keys for report in reports),
    )
    details = _details(reports, batch)
    if "degraded" not in outcomes:
        return [accepted, validated, receipt(first.id, "APPLIED", *known, "", *counts, [], details)]
    failed = sorted({group for report in reports for group in report.failed})
    reason = min(report.reason for report in reports if report.outcome == "degraded")
    return [accepted, validated, receipt(first.id, "DEGRADED", *known, reason, *counts, failed, details)]


def _details(reports: list[Report], batch: Batch) -> str:
    traces = [report.trace for report in reports if report.trace is not None]
    if traces:
        return _encode(_steps(traces, batch))
    replies = [reply for report in reports for reply in report.replies]
    if not replies:
        return ""
    if all(key is None for key, _ in replies):
        answers = [answer for _, answer in replies]
        return _encode(answers[0] if len(answers) == 1 else answers)
    return _encode(sorted(([key, answer] for key, answer in replies), key=_encode)[:_MAX_REPLIES])


def _steps(traces: list[Trace], batch: Batch) -> list[dict[str, Any]]:
    """Return each step's answer to a trace, in the order in which records pass the steps."""
    found = []
    for level, step in sorted({(trace.level, trace.step) for trace in traces}):
        parts = [trace for trace in traces if trace.step == step]
        settings: Any = next((trace.settings for trace in parts if trace.settings is not None), {})
        slowest = slowest_time(trace.time for trace in parts if trace.time is not None)
        found.append(
            {
                "step": step,
                "level": level,
                "key_groups": sum(trace.key_groups for trace in parts),
                "keys": sum(trace.keys for trace in parts),
                "records": batch.records.get(step, 0),
                "paused": any(trace.paused for trace in parts),
                "settings": settings,
            }
            | ({"watermark": slowest.watermark, "held_by": slowest.held_by} if slowest else {})
        )
    return found


def _encode(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
