"""Every kind of state matches a model in plain Python under any sequence of operations, also after reloads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from careless_mean import Mean, MeanOf
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from step_bench import StepBench, Stream, fingerprint

import penstock as ps


@dataclass
class Change:
    """One call of a method of a state."""

    state: str
    method: str
    at: str
    number: int


@dataclass
class Record:
    """Several changes to the states of a key; the function raises after them if the record says so."""

    key: int
    changes: list[Change]
    raises: bool


@dataclass
class Seen:
    text: str


@dataclass
class Best:
    """An accumulator: the highest number, and all numbers that were compared."""

    number: int
    compared: list[int] = field(default_factory=list)


def better(best: Best, other: Best) -> Best:
    """Merge in place, as careless user code does."""
    best.number = max(best.number, other.number)
    best.compared += other.compared
    return best


CHANGES: dict[tuple[str, str], Callable[[Any, Change], None]] = {
    ("items", "add"): lambda s, c: s.add(c.number),
    ("items", "add_all"): lambda s, c: s.add_all([c.number, 7, c.number]),
    ("items", "set"): lambda s, c: s.set([c.number, 8][: c.number % 3]),
    ("items", "clear"): lambda s, c: s.clear(),
    ("entries", "put"): lambda s, c: s.put(c.at, c.number),
    ("entries", "put_all"): lambda s, c: s.put_all({"d": c.number, c.at: 9}),
    ("entries", "remove"): lambda s, c: s.remove(c.at),
    ("entries", "set"): lambda s, c: s.set([(c.at, 1), ("a", 2)]),
    ("entries", "clear"): lambda s, c: s.clear(),
    ("best", "add"): lambda s, c: s.add(Best(c.number, [c.number])),
    ("best", "set"): lambda s, c: s.set(Best(c.number)),
    ("best", "clear"): lambda s, c: s.clear(),
    ("mean", "add"): lambda s, c: s.add(c.number),
    ("mean", "set"): lambda s, c: s.set(Mean(c.number, 1)),
    ("mean", "clear"): lambda s, c: s.clear(),
}


@dataclass
class Plain:
    """The model: what a key holds, in plain Python."""

    items: list[int] = field(default_factory=list)
    entries: dict[str, int] = field(default_factory=dict)
    best: Best | None = None
    mean: Mean | None = None

    def change(self, change: Change) -> None:
        number = change.number
        match change.state, change.method:
            case "items", "add":
                self.items.append(number)
            case "items", "add_all":
                self.items += [number, 7, number]
            case "items", "set":
                self.items = [number, 8][: number % 3]
            case "items", _:
                self.items = []
            case "entries", "put":
                self.entries[change.at] = number
            case "entries", "put_all":
                self.entries |= {"d": number, change.at: 9}
            case "entries", "remove":
                self.entries.pop(change.at, None)
            case "entries", "set":
                self.entries = {change.at: 1, "a": 2}
            case "entries", _:
                self.entries = {}
            case "best", "add":
                self.best = better(self.best, Best(number, [number])) if self.best else Best(number, [number])
            case "best", method:
                self.best = Best(number) if method == "set" else None
            case "mean", "add":
                self.mean = MeanOf().add(number, self.mean or Mean())
            case "mean", method:
                self.mean = Mean(number, 1) if method == "set" else None

    def told(self) -> Any:
        mean = None if self.mean is None else MeanOf().get_result(self.mean)
        return self.items, list(self.entries.items()), self.best, mean


def text(told: Any) -> str:
    return msgspec.json.encode(told).decode()


class ByRecord(ps.ConnectedProcessFunction):
    items = ps.ListState(int)
    entries = ps.MapState(str, int)
    best = ps.ReducingState(Best, better)
    mean = ps.AggregatingState(MeanOf())

    def process_control(self, record: Record, ctx: ps.Context) -> Iterator[Seen]:
        return self.process_record(record, ctx)

    def process_record(self, record: Record, ctx: ps.Context) -> Iterator[Seen]:
        for change in record.changes:
            CHANGES[change.state, change.method](getattr(self, change.state), change)
        assert len(self.items) == len(list(self.items)) == len(self.items.get())
        assert len(self.entries) == len(list(self.entries)) == len(self.entries.keys())
        yield Seen(text((self.items.get(), self.entries.items(), self.best.get(), self.mean.get())))
        if record.raises:
            raise ValueError("it was to")


class ByBatch(ByRecord):
    """The vectorised form of the function: applies the changes of one record after another to the columns."""

    def process_batch(self, records: pa.RecordBatch, ctx: ps.BatchContext) -> Any:
        told = []
        for slot, row in zip(ctx.key_indices.tolist(), records.to_pylist(), strict=True):
            plain = self._plain(slot)
            for change in row["changes"]:
                plain.change(Change(**change))
            self._put(slot, plain)
            told.append(text(self._plain(slot).told()))
        if any(records.column("raises").to_pylist()):
            raise ValueError("one was to")
        return pa.RecordBatch.from_pydict({"text": told})

    def _plain(self, slot: int) -> Plain:
        """Return what a slot holds as plain lists and dicts (not copies), which code then changes in place."""
        items = self.items.columns().values[slot]
        entries = self.entries.columns().values[slot]
        best, mean = self.best.columns(), self.mean.columns()
        return Plain(
            [] if items is None else items,
            {} if entries is None else entries,
            Best(int(best["number"][slot]), best["compared"][slot]) if best.present[slot] else None,
            Mean(int(mean["total"][slot]), int(mean["count"][slot]), mean["last"][slot])
            if mean.present[slot]
            else None,
        )

    def _put(self, slot: int, plain: Plain) -> None:
        at = np.array([slot])
        self.items.put(at, [plain.items])
        self.entries.put(at, [plain.entries])
        best, mean = plain.best, plain.mean
        if best is not None:
            self.best.put(at, {"number": [best.number], "compared": [best.compared]})
        if mean is not None:
            self.mean.put(at, {"total": [mean.total], "count": [mean.count], "last": [mean.last]})


def runs(methods: list[tuple[str, str]]) -> st.SearchStrategy[dict[str, list[Record]]]:
    """Return what a stream delivers in a micro-batch, by partition."""
    changes = st.tuples(st.sampled_from(methods), st.sampled_from("abc"), st.integers(0, 5))
    records = st.builds(
        lambda key, made, raises: Record(key, [Change(*method, at, n) for method, at, n in made], raises),
        st.integers(0, 2),
        st.lists(changes, max_size=4),
        st.sampled_from([False, False, True]),
    )
    return st.dictionaries(st.sampled_from(["p", "q"]), st.lists(records, max_size=4))


METHODS = sorted(CHANGES)
# Vectorised code sets values; it clears only the kinds of state that can be empty.
IN_COLUMNS = [method for method in METHODS if method not in (("best", "clear"), ("mean", "clear"))]


def expected(model: dict[int, Plain], records: list[Record]) -> Iterator[tuple[int, Seen]]:
    """Return the expected output. Records that raise emit and change nothing."""
    for record in records:
        held = copy.deepcopy(model.get(record.key, Plain()))
        for change in record.changes:
            held.change(change)
        if not record.raises:
            model[record.key] = held
            yield record.key, Seen(text(held.told()))


@examples(60)
@given(batches=st.lists(st.tuples(runs(METHODS), runs(METHODS)), max_size=3), seed=st.integers(0, 3))
def test_every_kind_holds_what_plain_python_holds(batches: Any, seed: int) -> None:
    """Several keys, several micro-batches, records that raise, blocks in any order."""
    streams = [Stream("controls", Record, is_control=True), Stream("records", Record)]
    bench = StepBench(ByRecord(), streams, {"": Seen})
    again = StepBench(ByRecord(), streams, {"": Seen})
    model: dict[int, Plain] = {}
    for controls, records in batches:
        streams[0].partitions, streams[1].partitions = controls, records
        result = bench.run(seed, cut=True)
        assert fingerprint(result) == fingerprint(again.run(seed + 1, cut=True))
        ordered = [record for runs in (controls, records) for name in sorted(runs) for record in runs[name]]
        assert bench.emitted(result) == list(expected(model, ordered))
        assert len(result.dead_letters) == sum(record.raises for record in ordered)


@given(batches=st.lists(st.tuples(runs(METHODS), runs(IN_COLUMNS)), max_size=3), seed=st.integers(0, 3))
def test_both_forms_of_code_see_the_same(batches: Any, seed: int) -> None:
    """Control records are handled one by one, then data as columns, then control records again."""
    streams = [Stream("controls", Record, is_control=True), Stream("records", Record)]
    bench = StepBench(ByBatch(), streams, {"": Seen})
    model: dict[int, Plain] = {}
    for controls, records in batches:
        streams[0].partitions, streams[1].partitions = controls, records
        result = bench.run(seed)
        ordered = [record for runs in (controls, records) for name in sorted(runs) for record in runs[name]]
        assert bench.emitted(result) == list(expected(model, ordered))
        assert len(result.dead_letters) == sum(record.raises for record in ordered)
