"""State pages: read the keys of a step with their values, page by page, after a committed micro-batch (no Spark).

Keys are sorted by key group, and within a group by a digest of the key. The order is the same in every micro-batch, so
a reader that continues after a key sees each key that stays exactly once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.committed_state import CommittedState, read_committed
from penstock.checkpoints.described_state import DescribedStep, JobState
from penstock.errors import CheckpointError, UnknownIdError
from penstock.savepoints.captured_tables import FrozenEntries
from penstock.snapshots.text_columns import json_texts
from penstock.state.group_table import KEY_COLUMN
from penstock.state.key_groups import key_groups
from penstock.state.stored_blocks import Content
from penstock.state.stored_runs import stored_runs, stored_table
from penstock.state.timeline import TIMERS
from penstock.windows.window_state import WINDOWS

__all__ = [
    "KeyPage",
    "KeysWanted",
    "StoredKey",
    "find_step",
    "key_of_text",
    "key_page",
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


def key_page(checkpoint: Checkpoint, state: JobState, wanted: KeysWanted) -> KeyPage:
    """Read the wanted keys. The job may be running.

    Raises UnknownIdError for an unknown step, and CheckpointError for a wrong key or place, and when the micro-batch is
    not kept or cannot be read.
    """
    search = _search(find_step(state, wanted.step), state.key_groups, wanted)
    batch, found = read_committed(
        checkpoint, lambda committed: (committed.batch, search.find(committed)), wanted.batch
    )
    page = found[: wanted.limit]
    return KeyPage(
        batch=batch,
        items=tuple(_stored(one) for one in page),
        next=f"{page[-1].place[0]}.{page[-1].place[1]}" if len(found) > wanted.limit else None,
    )


@dataclass(frozen=True)
class _Found:
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
class _Search:
    """A search for the next keys of a step; with `key` only that key, in its key group."""

    step: DescribedStep
    wanted: KeysWanted
    after: Place
    key: Any = None
    group: int = -1

    def find(self, committed: CommittedState) -> list[_Found]:
        """Return the keys in order, at most one more than the limit. Only slots that may have them are read."""
        is_one = self.group >= 0
        first = self.group if is_one else max(self.after[0], 0)
        end = first + 1 if is_one else committed.lineage.key_groups
        found: list[_Found] = []
        with contextlib.closing(committed.slots(self.step.node, range(first, end))) as slots:
            # Key groups in order have slots in order.
            for _, entries in slots:
                found += self._find_key(entries) if is_one else self._find_next(entries, len(found))
                if len(found) > self.wanted.limit:
                    break
                # The next slot needs the memory.
                del entries
        return found[: self.wanted.limit + 1]

    def _find_key(self, entries: Mapping[str, Content]) -> list[_Found]:
        table = stored_table(self.step.schema, FrozenEntries(entries), self.group)
        places = table.find(pa.array([self.key], self.step.schema.field(KEY_COLUMN).type))
        return self._found(self.group, table.rows(places[places >= 0]))

    def _find_next(self, entries: Mapping[str, Content], before: int) -> list[_Found]:
        """Return the next keys of a slot, of which `before` have been found in earlier slots."""
        found: list[_Found] = []
        for run in stored_runs(self.step.schema, FrozenEntries(entries)):
            for group, table in sorted(run.items()):
                if group >= self.after[0]:
                    found += self._found(group, table.all_rows())
                if before + len(found) > self.wanted.limit:
                    return found
        return found

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


def _search(step: DescribedStep, groups: int, wanted: KeysWanted) -> _Search:
    after = (-1, "") if wanted.after is None else parse_place(wanted.after)
    if wanted.key is None:
        return _Search(step, wanted, after)
    key = key_of_text(wanted.key, step)
    (group,) = key_groups(key, groups).tolist()
    return _Search(step, wanted, after, key.to_pylist()[0], group)


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
