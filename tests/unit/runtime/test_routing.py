"""Routing: each record that cannot continue is one dead letter with its origin; strict mode stops at it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import StrictModeError
from penstock.operators.record_blocks import DeadLetter, Records
from penstock.runtime.packed_rows import PackedRow, from_bytes
from penstock.runtime.plan import JobPlan
from penstock.runtime.router import Router, dead_letter_rows
from penstock.state.key_groups import key_groups
from penstock.streams.graph import Port
from penstock.streams.stream import DataStream
from penstock.testing.batch_runner import BatchRunner, Inputs


@dataclass
class Item:
    number: int
    name: str | None = None


class Echo(ps.ProcessFunction):
    """Emits its input, and raises at multiples of 11."""

    def process_record(self, record: Item, ctx: ps.Context) -> Iterator[Item]:
        yield record
        if record.number % 11 == 0:
            raise ValueError("elevens")


def is_kept(item: Item) -> bool:
    if item.number % 2 == 0:
        raise ValueError("twos")
    return True


def mapped(item: Item) -> Item:
    if item.number % 3 == 0:
        raise ValueError("threes")
    return item


def flat_mapped(item: Item) -> Iterator[Item]:
    yield item
    if item.number % 5 == 0:
        raise ValueError("fives")


def key_of(item: Item) -> int:
    if item.number % 7 == 0:
        raise ValueError("sevens")
    return item.number


def make_job() -> ps.Job:
    job = ps.Job("job", key_groups=4)
    items = job.data_stream("items", schema=Item)
    items = items.filter(is_kept, name="f").map(mapped, name="m").flat_map(flat_mapped, name="fm")
    by_name = items.key_by(key_of).process("seven", Echo()).key_by("name").process("name", Echo())
    by_name.sink_to("out")
    return job


STOPS: list[tuple[Callable[[Item], bool], str, str, str]] = [
    (lambda i: i.number % 2 == 0, "items", "transform/f", "twos"),
    (lambda i: i.number % 3 == 0, "items", "transform/m", "threes"),
    (lambda i: i.number % 5 == 0, "items", "transform/fm", "fives"),
    (lambda i: i.number % 7 == 0, "items", "seven", "sevens"),
    (lambda i: i.number % 11 == 0, "items", "seven", "elevens"),
    (lambda i: i.name is None, "seven", "name", "the key name is null"),
]


@given(
    items=st.lists(st.builds(Item, st.integers(0, 400), st.sampled_from([None, "a", "b"])), max_size=25),
    raw=st.booleans(),
)
def test_each_record_leaves_or_is_one_dead_letter(items: list[Item], raw: bool) -> None:
    """Each stops at the first failing step, with the reason, its origin and its bytes; none is lost."""
    job = BatchRunner(make_job(), raw_streams=["items"] if raw else [])
    result = job.run({"items": [("file", items)]})
    left, stopped = [], []
    for place, item in enumerate(items):
        for stops, stream, step, reason in STOPS:
            if stops(item):
                stopped.append((stream, step, reason, item, place if stream == "items" else None))
                break
        else:
            left.append(item)
    assert sorted(map(str, result.output("out"))) == sorted(map(str, left))
    found = []
    for letter in result.dead_letters:
        (said,) = [reason for *_, reason in STOPS if reason in letter.reason.splitlines()[-1]]
        place = letter.offset if letter.stream == "items" else None
        assert letter.stream != "items" or letter.partition == "file"
        found.append((letter.stream, letter.step, said, msgspec.json.decode(letter.raw, type=Item), place))
    assert sorted(map(str, found)) == sorted(map(str, stopped))


KEYS: dict[str, tuple[Any, Any, list[Item]]] = {
    "null field": ("name", None, [Item(1, None)]),
    "null part": (("number", "name"), None, [Item(1, None)]),
    "null from a function": (lambda i: None if i.number == 1 else i.number, int, [Item(1, "a")]),
    "raising function": (lambda i: 1 // (i.number - 1), int, [Item(1, "a")]),
    "wrong type from a function": (lambda i: "x" if i.number == 1 else i.number, int, [Item(1, "a")]),
}


@pytest.mark.parametrize("case", KEYS)
@pytest.mark.parametrize("others", [0, 3])
def test_a_record_without_a_key_is_set_aside(case: str, others: int) -> None:
    """It is one dead letter of the step; other records continue."""
    key, key_type, bad = KEYS[case]
    job = ps.Job("job", key_groups=4)
    keys = key if isinstance(key, tuple) else (key,)
    keyed = job.data_stream("items", schema=Item).key_by(*keys, key_type=key_type)
    keyed.process("step", Echo()).sink_to("out")
    good = [Item(number, "a") for number in range(2, 2 + others)]
    result = BatchRunner(job).run({"items": [("file", [*good, *bad])]})
    assert sorted(item.number for item in result.output("out")) == [item.number for item in good]
    (letter,) = result.dead_letters
    assert (letter.stream, letter.step, letter.partition, letter.offset) == ("items", "step", "file", others)
    assert letter.reason


def test_records_without_a_key_may_stand_beside_those_whose_key_raises() -> None:
    """Each is one dead letter, with its own reason."""

    def key(item: Item) -> int | None:
        return None if item.number == 1 else item.number * (1 // item.number + 1)

    job = ps.Job("job", key_groups=4)
    job.data_stream("items", schema=Item).key_by(key, key_type=int).process("step", Echo()).sink_to("out")
    result = BatchRunner(job).run({"items": [("file", [Item(2), Item(1), Item(0), Item(3)])]})
    assert sorted(item.number for item in result.output("out")) == [2, 3]
    reasons = {letter.offset: letter.reason.splitlines()[-1] for letter in result.dead_letters}
    assert len(result.dead_letters) == 2
    assert reasons[1] == "the key function returned no key"
    assert reasons[2].startswith("ZeroDivisionError")


def test_the_reason_names_the_key() -> None:
    """The fields of the key, or its function."""
    job = ps.Job("job", key_groups=1)
    items = job.data_stream("items", schema=Item)
    items.key_by("number", "name").process("fields", Echo())
    items.key_by(lambda item: None, key_type=int).process("function", Echo())
    letters = BatchRunner(job).run({"items": [("file", [Item(1)])]}).dead_letters
    assert {letter.step: letter.reason for letter in letters} == {
        "fields": "the key number and name is null",
        "function": "the key function returned no key",
    }


def alarm_of(job: ps.Job) -> DataStream:
    class Side(ps.ProcessFunction):
        side_outputs = {"alarms": Item}

        def process_record(self, record: Item, ctx: ps.Context) -> None:
            ctx.side_output("alarms", record)

    return job.data_stream("items", schema=Item).key_by("number").process("s", Side()).side_output("alarms")


def test_records_of_a_side_output_are_called_so_in_dead_letters() -> None:
    """Transforms and steps after a side output use the same name for the stream."""
    job = ps.Job("job", key_groups=1)
    alarms = alarm_of(job)
    alarms.map(mapped, name="m").sink_to("out")
    alarms.key_by("name").process("next", Echo())
    letters = BatchRunner(job).run({"items": [("file", [Item(3, None)])]}).dead_letters
    assert sorted((letter.stream, letter.step) for letter in letters) == [
        ("s.alarms", "next"),
        ("s.alarms", "transform/m"),
    ]


@pytest.mark.parametrize(
    ("number", "step", "reason"),
    [(2, "transform/f", "twos"), (7, "seven", "sevens"), (11, "seven", "elevens"), (1, "name", "key name")],
)
def test_strict_mode_stops_at_the_first_bad_record(number: int, step: str, reason: str) -> None:
    """The error names the step, the reason and the record; for records of a source also stream, file and offset."""
    job = BatchRunner(make_job(), strict=True)
    batch: Inputs = {"items": [("file-7.jsonl", [Item(1, "a"), Item(13, "b"), Item(number, None)])]}
    with pytest.raises(StrictModeError) as raised:
        job.run(batch)
    message = str(raised.value)
    assert f"at step {step!r}" in message
    assert reason in message
    assert f'"number":{number}' in message
    if step != "name":
        assert "record 2 of 'file-7.jsonl' in stream 'items'" in message


def test_strict_mode_lets_good_records_pass() -> None:
    """It only stops at bad ones."""
    result = BatchRunner(make_job(), strict=True).run({"items": [("file", [Item(1, "a"), Item(13, "b")])]})
    assert {item.number for item in result.output("out")} == {1, 13}


def records_of(items: list[Item], job: ps.Job) -> Records:
    kind = job.graph.sources()[0].record_type
    return Records(kind.batch(items), "items", "file", pa.array(range(len(items)), pa.int64()))


@given(numbers=st.lists(st.integers(0, 50), max_size=30), key_groups=st.integers(1, 20))
def test_a_step_gets_one_block_for_each_key_group(numbers: list[int], key_groups: int) -> None:
    """Blocks hold the records of one key group each, in order, and are placed by the first offset."""
    job = ps.Job("job", key_groups=key_groups)
    job.data_stream("items", schema=Item).key_by("number").process("step", Echo())
    plan = JobPlan(job.graph, key_groups, frozenset(), frozenset(), strict=False)
    (level,) = plan.levels()
    schema = plan.step_schema(level[0], 0)
    rows = list(Router(plan, Port("source/items")).route(records_of([Item(n) for n in numbers], job)))
    assert len({row.key_group for row in rows}) == len(rows)
    assert {(row.destination, row.input, row.partition) for row in rows} <= {("step/step", 0, "/items/file")}
    group_of: dict[int, set[int]] = {}
    offsets = []
    for row in rows:
        batch = from_bytes(row.body, schema)
        places = batch.column("__offset").to_pylist()
        assert places == sorted(places)
        assert row.first_offset == places[0]
        assert batch.column("number").to_pylist() == [numbers[place] for place in places]
        offsets += places
        for number in batch.column("number").to_pylist():
            group_of.setdefault(number, set()).add(row.key_group)
    assert sorted(offsets) == list(range(len(numbers)))
    assert all(len(groups) == 1 for groups in group_of.values())


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("count", [1, 1000, 1001])
def test_in_real_time_a_slot_gets_one_block(slots: int, count: int) -> None:
    """It has the records of the slot's keys. Few are in their order, and many by key group, then in their order."""
    job = ps.Job("job", key_groups=8)
    job.data_stream("items", schema=Item).key_by("number").process("step", Echo())
    plan = JobPlan(job.graph, 8, frozenset(), frozenset(), strict=False, parallelism=slots, in_real_time=True)
    (level,) = plan.levels()
    schema = plan.step_schema(level[0], 0)
    numbers = [place * 7919 % 100 for place in range(count)]
    groups = key_groups(pa.array(numbers), 8).tolist()
    rows = list(Router(plan, Port("source/items")).route(records_of([Item(n) for n in numbers], job)))
    assert len(rows) == min(slots, count)
    slot_of = {group: slot for slot in plan.slot_of.values() for group in slot.key_groups}
    offsets: list[int] = []
    for row in rows:
        places = from_bytes(row.body, schema).column("__offset").to_pylist()
        assert row.first_offset == places[0]
        assert {slot_of[groups[place]].key_groups[0] for place in places} == {row.key_group}
        assert places == sorted(places, key=lambda place: (groups[place] if count > 1000 else 0, place))
        offsets += places
    assert sorted(offsets) == list(range(count))


def test_a_sink_gets_the_records_of_a_partition_together() -> None:
    """Rows for sinks are spread over key groups by partition, so one partition's records stay in order."""
    job = ps.Job("job", key_groups=16)
    job.data_stream("items", schema=Item).sink_to("out")
    plan = JobPlan(job.graph, 16, frozenset(), frozenset(), strict=False)
    router = Router(plan, Port("source/items"))
    records = records_of([Item(1), Item(2)], job)

    def rows(partition: str) -> list[PackedRow]:
        made = Records(records.batch, "items", partition, records.offsets)
        return list(router.route(made))

    assert rows("a")[0].key_group == rows("a")[0].key_group
    assert len({rows(f"file-{n}")[0].key_group for n in range(40)}) > 8
    assert all(0 <= rows(f"file-{n}")[0].key_group < 16 for n in range(40))


def test_control_records_may_leave_through_a_sink() -> None:
    """A control stream that steers may be logged as well."""
    job = ps.Job("job")
    control = job.control_stream("settings", schema=Item)
    control.sink_to("log")
    job.data_stream("items", schema=Item).sink_to("out")
    result = BatchRunner(job).run({"settings": [("s", [Item(1)])], "items": [("i", [Item(2)])]})
    assert (result.output("log"), result.output("out")) == ([Item(1)], [Item(2)])


def keyed_by(key: tuple[Any, ...], key_type: Any) -> Callable[[DataStream], DataStream]:
    return lambda stream: stream.key_by(*key, key_type=key_type).process("step", Echo())


@pytest.mark.parametrize(
    ("key", "key_type", "expected"),
    [
        (("name",), None, b"na\xc3\xafve"),
        (("number",), None, b"1"),
        (("number", "name"), None, '[1,"naïve"]'.encode()),
        ((lambda item: -item.number,), int, b"-1"),
        ((lambda item: b"\xff\x00",), bytes, b"\xff\x00"),
        ((lambda item: dt.date(2026, 1, 2),), dt.date, b"2026-01-02"),
    ],
)
def test_emitted_records_keep_their_key_on_the_way_to_a_keyed_sink(
    key: tuple[Any, ...], key_type: Any, expected: bytes
) -> None:
    """Text and bytes are unchanged, numbers are decimal, several fields a JSON list; also after transforms."""
    job = ps.Job("job", key_groups=4)
    step = keyed_by(key, key_type)(job.data_stream("items", schema=Item))
    step.sink_to("direct")
    step.filter(lambda item: item.number == 1).map(mapped).sink_to("behind")
    step.sink_to("keyless")
    runner = BatchRunner(job, keyed_sinks=["direct", "behind"])
    result = runner.run({"items": [("file", [Item(1, "naïve")])]})
    assert result.sinks["direct"].keys == result.sinks["behind"].keys == [expected]
    assert result.sinks["keyless"].keys == []
    assert result.output("direct") == [Item(1, "naïve")]


@given(names=st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=20))
def test_every_emitted_record_has_the_key_it_was_emitted_under(names: list[str]) -> None:
    """Keys stay with their records through filters and flat_maps that drop and repeat records."""
    job = ps.Job("job", key_groups=4)
    step = job.data_stream("items", schema=Item).key_by("name").process("step", Echo())
    step.filter(lambda item: item.number % 2 == 1).flat_map(lambda item: [item] * 2, output=Item).sink_to("o")
    items = [Item(number * 12 + 1 + number % 3, name) for number, name in enumerate(names)]
    result = BatchRunner(job, keyed_sinks=["o"]).run({"items": [("file", items)]})
    if "o" in result.sinks:
        assert result.sinks["o"].keys == [item.name.encode() for item in result.output("o")]
    expected = [item.number for item in items if item.number % 2 == 1 and item.number % 11]
    assert sorted(item.number for item in result.output("o")) == sorted(expected * 2)


def test_records_of_a_source_without_keys_have_none() -> None:
    """A keyed sink behind a source that has no message keys gets nulls."""
    job = ps.Job("job")
    job.data_stream("items", schema=Item).sink_to("out")
    result = BatchRunner(job, keyed_sinks=["out"]).run({"items": [("file", [Item(1), Item(2)])]})
    assert result.sinks["out"].keys == [None, None]


def test_strict_jobs_name_the_timer_that_raised() -> None:
    """No record caused it."""
    letter = DeadLetter("it is broken", "@timers", "alarms", "", 0, b'{"key":5}')
    plan = BatchRunner(make_job(), strict=True).plan
    with pytest.raises(StrictModeError) as raised:
        list(dead_letter_rows([letter], plan))
    assert str(raised.value) == "The timer {\"key\":5} could not be processed at step 'alarms': it is broken"
