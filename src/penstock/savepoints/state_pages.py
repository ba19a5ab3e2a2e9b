"""State pages: read the keys of a step with their values, page by page, after a committed micro-batch.

Keys are sorted by key group, and within a group by a digest of the key. The order is the same in every micro-batch, so
a reader that continues after a key sees each key that stays exactly once.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.checkpoints.checkpoint import Checkpoint, Lineage
from penstock.checkpoints.committed_state import find_committed_batch
from penstock.checkpoints.described_state import DescribedStep, JobState
from penstock.errors import CheckpointError, UnknownIdError
from penstock.snapshots.text_columns import json_texts
from penstock.state.group_table import KEY_COLUMN
from penstock.state.key_groups import key_groups
from penstock.state.stored_blocks import Content
from penstock.state.timeline import TIMERS
from penstock.windows.window_state import WINDOWS

if TYPE_CHECKING:
    from penstock.spark.types import SparkSession

__all__ = [
    "KeyPage",
    "KeyQuery",
    "KeysWanted",
    "StoredKey",
    "find_step",
    "key_of_text",
    "key_page",
    "key_query",
    "parse_place",
]

Place: TypeAlias = tuple[int, str]
"""The place of a key in the order: its key group, and the digest by which the group is sorted."""

_DIGEST: Final = 32
_HIDDEN: Final = {TIMERS: "timers", WINDOWS: "windows"}


@dataclass(frozen=True, kw_only=True)
class StoredKey:
    """A key with its state in a step, as JSON values: states by name, its timers, and its open windows.

    `bytes` is the size of all this as JSON. `values`, `timers` and `windows` are null if it exceeds the wanted size.
    """

    key: Any
    key_group: int
    bytes: int
    values: dict[str, Any] | None
    timers: Any
    windows: Any


@dataclass(frozen=True, kw_only=True)
class KeyPage:
    """A page of a step's keys after a micro-batch. `next` is the `after` of the next page; null on the last page."""

    batch: int
    items: tuple[StoredKey, ...]
    next: str | None


class KeysWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted keys of a step: one by its text, or at most `limit` of those after a place, which `next` names.

    `contains` is text that the JSON of a key must contain. The values of a key are included up to `max_bytes`.
    """

    step: str
    key: str | None = None
    after: str | None = None
    contains: str = ""
    limit: int = 100
    batch: int | None = None
    max_bytes: int = 65536


def find_step(state: JobState, name: str) -> DescribedStep:
    """Find a step by its name. Raises UnknownIdError if there is none."""
    if name not in state.steps:
        known = ", ".join(state.steps) or "none"
        raise UnknownIdError(f"The job {state.job!r} has no step {name!r}; its steps are {known}.")
    return state.steps[name]


def parse_place(after: str) -> Place:
    """Parse a place from `KeyPage.next`. Raises CheckpointError for any other text."""
    group, _, digest = after.partition(".")
    if not (group.isascii() and group.isdecimal() and len(group) < 9 and len(digest) == _DIGEST):
        raise CheckpointError(f"after={after} is not the `next` of a page of keys. Leave it out to begin.")
    return int(group), digest


@dataclass(frozen=True)
class KeyQuery:
    """A checked query for keys: their step is known, and their micro-batch is committed."""

    checkpoint: Checkpoint
    lineage: Lineage
    number: int
    node: str
    reader: _PageReader

    def read(self, session: SparkSession) -> KeyPage:
        """Read the keys. Raises CheckpointError when the micro-batch is no longer kept."""
        # This import loads PySpark, which callers that only name types need not wait for.
        from penstock.savepoints.snapshot_capture import read_step

        wanted, number = self.reader.wanted, self.number
        read = functools.partial(read_step, session, self.checkpoint, node=self.node, reader=self.reader)
        try:
            found = read(number - self.lineage.first_batch)
        except CheckpointError:
            newer = find_committed_batch(self.checkpoint, self.lineage, wanted.batch)
            if newer == number:
                raise
            # A fast job has committed so much that the micro-batch is no longer kept.
            number = newer
            found = read(number - self.lineage.first_batch)
        parts = [msgspec.msgpack.decode(body, type=list[_Found]) for body in found]
        merged = list(heapq.merge(*parts, key=lambda one: one.place))
        page = merged[: wanted.limit]
        return KeyPage(
            batch=number,
            items=tuple(_stored(one) for one in page),
            next=f"{page[-1].place[0]}.{page[-1].place[1]}" if len(merged) > wanted.limit else None,
        )


def key_query(checkpoint: Checkpoint, state: JobState, wanted: KeysWanted) -> KeyQuery:
    """Check which keys are wanted, without Spark. Raises UnknownIdError, CheckpointError."""
    step = find_step(state, wanted.step)
    lineage = checkpoint.known_lineage()
    reader = _reader(step, state.key_groups, wanted)
    number = find_committed_batch(checkpoint, lineage, wanted.batch)
    return KeyQuery(checkpoint, lineage, number, step.node, reader)


def key_page(session: SparkSession, checkpoint: Checkpoint, state: JobState, wanted: KeysWanted) -> KeyPage:
    """Read the wanted keys. Raises UnknownIdError, CheckpointError."""
    return key_query(checkpoint, state, wanted).read(session)


class _Found(msgspec.Struct, array_like=True):
    """A key in a slot: its place, its JSON, and the JSON of its values by column, unless they are too large."""

    place: Place
    key: str
    bytes: int
    values: dict[str, str] | None


def _stored(found: _Found) -> StoredKey:
    texts = found.values
    key = msgspec.json.decode(found.key)
    held = {} if texts is None else {name: msgspec.json.decode(text) for name, text in texts.items()}
    hidden = {shown: held.pop(name, None) for name, shown in _HIDDEN.items()}
    return StoredKey(
        # A key of several fields is shown as users write it: as a list.
        key=list(key.values()) if isinstance(key, dict) else key,
        key_group=found.place[0],
        bytes=found.bytes,
        values=None if texts is None else held,
        **hidden,
    )


@dataclass(frozen=True)
class _PageReader:
    """Finds the next keys of one slot, in a worker; with `key` only that key."""

    step: DescribedStep
    wanted: KeysWanted
    after: Place
    key: Any = None
    group: int = -1

    def __call__(self, number: int, entries: Mapping[str, Content]) -> Iterator[bytes]:  # noqa: ARG002  # as SlotReader
        from penstock.savepoints.captured_tables import FrozenEntries
        from penstock.state.stored_runs import stored_runs, stored_table

        stored = FrozenEntries(entries)
        if self.group >= 0:
            table = stored_table(self.step.schema, stored, self.group)
            places = table.find(pa.array([self.key], self.step.schema.field(KEY_COLUMN).type))
            rows = table.rows(places[places >= 0])
            yield msgspec.msgpack.encode(self._found(self.group, rows))
            return
        found: list[_Found] = []
        for run in stored_runs(self.step.schema, stored):
            for group, table in sorted(run.items()):
                if group >= self.after[0] and len(found) <= self.wanted.limit:
                    found += self._found(group, table.all_rows())
            if len(found) > self.wanted.limit:
                break
        yield msgspec.msgpack.encode(found[: self.wanted.limit + 1])

    def _found(self, group: int, rows: pa.RecordBatch) -> list[_Found]:
        """Return the wanted keys of a group, in order, at most one more than the limit."""
        keys = json_texts(rows.column(KEY_COLUMN)).to_pylist()
        places = sorted(
            (place, number)
            for number, text in enumerate(keys)
            if self.wanted.contains in text
            and (place := (group, hashlib.sha256(text.encode()).hexdigest()[:_DIGEST])) > self.after
        )[: self.wanted.limit + 1]
        chosen = rows.take(pa.array([number for _, number in places], pa.int64()))
        shown = [name for name in rows.schema.names if name in self.step.states and _is_shown(name)]
        texts = [json_texts(chosen.column(name)).to_pylist() for name in shown]
        found = []
        for row, (place, number) in enumerate(places):
            values = dict(zip(shown, (column[row] for column in texts), strict=True))
            size = sum(map(len, values.values()))
            shown_values = values if size <= self.wanted.max_bytes else None
            found.append(_Found(place, keys[number], size, shown_values))
        return found


def _reader(step: DescribedStep, groups: int, wanted: KeysWanted) -> _PageReader:
    after = (-1, "") if wanted.after is None else parse_place(wanted.after)
    if wanted.key is None:
        return _PageReader(step, wanted, after)
    key = key_of_text(wanted.key, step)
    (group,) = key_groups(key, groups).tolist()
    return _PageReader(step, wanted, after, key.to_pylist()[0], group)


def _is_shown(name: str) -> bool:
    return name in _HIDDEN or not name.startswith("__")


def key_of_text(text: str, step: DescribedStep) -> pa.Array:
    """Parse a key of the step from text, as an array of one. Raises CheckpointError if it has another type."""
    from penstock.engine.command_validation import key_array

    kind = step.schema.field(KEY_COLUMN).type
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        value = text
    if pa.types.is_string(kind) and not isinstance(value, str):
        value = text
    try:
        return key_array([value], kind)
    except (ValueError, TypeError, OverflowError, pa.ArrowException, msgspec.ValidationError) as e:
        raise CheckpointError(f"{text!r} is not a key of the step, whose keys are {kind}: {e}.") from None
