"""Changed types of states: compatible ones are restored with their values, others are refused."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from evolving_states import STEP, Case, Outcome, after_of, before_of, by_id, declared_after, planned
from stored_jobs import Keep, first_of_two

import penstock as ps
from penstock.checkpoints.evolution import Change, check_changes
from penstock.errors import StateMismatchError
from penstock.records.schemas import record_type

AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
PRICE = decimal.Decimal("123.45")


Room = make_dataclass("Room", [("name", str), ("limit", int)])
RoomWithNote = make_dataclass("RoomWithNote", [("name", str), ("limit", int), ("note", str | None, None)])
RoomWithOwner = make_dataclass("RoomWithOwner", [("name", str), ("limit", int), ("owner", str)])
RoomOrNone = make_dataclass("RoomOrNone", [("name", str | None), ("limit", int)])
House = make_dataclass("House", [("room", Room)])
HouseWithNote = make_dataclass("HouseWithNote", [("room", RoomWithNote)])
HouseWithOwner = make_dataclass("HouseWithOwner", [("room", RoomWithOwner)])
HouseOrNone = make_dataclass("HouseOrNone", [("room", RoomOrNone)])

ROOM = Room("attic", 5)
ATTIC = {"name": "attic", "limit": 5}
WITHOUT_NOTE = {**ATTIC, "note": None}

FIELDS = "name: string, limit: int64"
INNER_FIELDS = "name: string not null, limit: int64 not null"
"""The fields of a room in a state of rooms, and where rooms stand within records."""


def with_note(place: str = "{}", fields: str = FIELDS) -> str:
    """Describe a type in which rooms at some place have a note added."""
    before, after = (place.format(f"struct<{some}>") for some in (fields, f"{fields}, note: string"))
    return f"{before} becomes {after}"


def unlike(declared: str, found: str, why: str = ": not every value fits") -> str:
    return f"it is declared as {declared}, and found as {found}{why}"


def lacking(field: str) -> str:
    return f"the field {field!r} must have a value, and what is stored may have none; make it optional"


def of_type(schema: str, value: Any) -> Any:
    """Return a record type with one field."""
    return record_type(schema).python_class(value)


def folding(room: type) -> ps.AggregatingState[Any, Any]:
    return ps.AggregatingState(Keep(), accumulator=room)


def kept(id: str, before: Any, after: Any, value: Any, kept: Any) -> Case:  # noqa: A002  # as of a case
    return Case(id, before, after, value, "kept", kept=kept)


def widened(id: str, before: Any, after: Any, value: Any, detail: str, kept: Any) -> Case:  # noqa: A002
    return Case(id, before, after, value, "widened", detail, kept)


def refused(id: str, before: Any, after: Any, value: Any, detail: str) -> Case:  # noqa: A002
    return Case(id, before, after, value, "refused", detail)


KEPT = [
    kept("a value", ps.ValueState(int), ps.ValueState(int), 7, 7),
    kept("a record", ps.ValueState(Room), ps.ValueState(Room), ROOM, ATTIC),
    kept("a field that is optional now", ps.ValueState(Room), ps.ValueState(RoomOrNone), ROOM, ATTIC),
]
WIDENED = [
    *(
        widened(
            f"{before} to {after}",
            ps.ValueState(f"a {before}"),
            ps.ValueState(f"a {after}"),
            of_type(f"a {before}", value),
            f"struct<a: {stored}> becomes struct<a: {declared}>",
            {"a": found},
        )
        for before, after, value, stored, declared, found in [
            ("TINYINT", "SMALLINT", -128, "int8", "int16", -128),
            ("SMALLINT", "INT", 300, "int16", "int32", 300),
            ("INT", "BIGINT", 2**31 - 1, "int32", "int64", 2**31 - 1),
            ("INT", "DOUBLE", -(2**31), "int32", "double", -(2.0**31)),
            ("FLOAT", "DOUBLE", 0.5, "float", "double", 0.5),
            ("DECIMAL(5, 2)", "DECIMAL(7, 3)", PRICE, "decimal128(5, 2)", "decimal128(7, 3)", "123.450"),
            ("ARRAY<INT>", "ARRAY<BIGINT>", [1, 2], "list<item: int32>", "list<item: int64>", [1, 2]),
        ]
    ),
    widened("a field", ps.ValueState(Room), ps.ValueState(RoomWithNote), ROOM, with_note(), WITHOUT_NOTE),
    widened(
        "a field inside",
        ps.ValueState(House),
        ps.ValueState(HouseWithNote),
        House(ROOM),
        with_note("struct<room: {}>", INNER_FIELDS),
        {"room": WITHOUT_NOTE},
    ),
    widened(
        "a field in a list",
        ps.ListState(Room),
        ps.ListState(RoomWithNote),
        [ROOM, ROOM],
        with_note("list<item: {}>"),
        [WITHOUT_NOTE] * 2,
    ),
    widened(
        "a field in a map",
        ps.MapState(str, Room),
        ps.MapState(str, RoomWithNote),
        {"a": ROOM},
        with_note("map<string, {}>"),
        {"a": WITHOUT_NOTE},
    ),
    widened(
        "a temporal state",
        ps.TemporalState(Room),
        ps.TemporalState(RoomWithNote),
        {None: ROOM, AT: None},
        with_note("list<item: struct<at: timestamp[us, tz=UTC], value: {}>>", INNER_FIELDS),
        [{"at": None, "value": WITHOUT_NOTE}, {"at": "2026-01-02T00:00:00.000000Z", "value": None}],
    ),
]
REFUSED = [
    refused("another type", ps.ValueState(int), ps.ValueState(str), 7, unlike("string", "int64")),
    refused(
        "narrowed",
        ps.ValueState("a BIGINT"),
        ps.ValueState("a INT"),
        of_type("a BIGINT", 7),
        unlike("struct<a: int32>", "struct<a: int64>"),
    ),
    refused("64 bits to double", ps.ValueState(int), ps.ValueState(float), 7, unlike("double", "int64")),
    refused(
        "fewer digits",
        ps.ValueState("a DECIMAL(7, 3)"),
        ps.ValueState("a DECIMAL(7, 4)"),
        of_type("a DECIMAL(7, 3)", decimal.Decimal(1)),
        unlike("struct<a: decimal128(7, 4)>", "struct<a: decimal128(7, 3)>"),
    ),
    refused(
        "a field less",
        ps.ValueState(RoomWithNote),
        ps.ValueState(Room),
        RoomWithNote("attic", 5, "dusty"),
        unlike(f"struct<{FIELDS}>", f"struct<{FIELDS}, note: string>", ": the field 'note' would be lost"),
    ),
    refused(
        "another kind",
        ps.ValueState(int),
        ps.ReducingState(int, first_of_two),
        7,
        unlike("ReducingState", "ValueState", ""),
    ),
    refused(
        "a list instead of a temporal state",
        ps.TemporalState(int),
        ps.ListState(int),
        {None: 1},
        unlike("ListState", "TemporalState", ""),
    ),
    *(
        refused(f"a required field more in {name}", before, after, value, lacking("owner"))
        for name, before, after, value in [
            ("a value", ps.ValueState(Room), ps.ValueState(RoomWithOwner), ROOM),
            ("a list", ps.ListState(Room), ps.ListState(RoomWithOwner), [ROOM]),
            ("a map", ps.MapState(str, Room), ps.MapState(str, RoomWithOwner), {"a": ROOM}),
            ("an accumulator", folding(Room), folding(RoomWithOwner), ROOM),
        ]
    ),
    refused(
        "a field that is required now",
        ps.ValueState(RoomOrNone),
        ps.ValueState(Room),
        RoomOrNone(None, 5),
        lacking("name"),
    ),
    refused(
        "a required field more inside",
        ps.ValueState(House),
        ps.ValueState(HouseWithOwner),
        House(ROOM),
        unlike(
            f"struct<room: struct<{INNER_FIELDS}, owner: string not null>>",
            f"struct<room: struct<{INNER_FIELDS}>>",
            f": {lacking('owner')}",
        ),
    ),
    refused(
        "a field inside that is required now",
        ps.ValueState(HouseOrNone),
        ps.ValueState(House),
        HouseOrNone(RoomOrNone(None, 5)),
        unlike(
            f"struct<room: struct<{INNER_FIELDS}>>",
            "struct<room: struct<name: string, limit: int64 not null>>",
            f": {lacking('name')}",
        ),
    ),
]


@by_id([*KEPT, *WIDENED])
@pytest.mark.parametrize("renamed", [False, True], ids=["", "renamed"])
def test_states_that_fit_are_taken_over(case: Case, renamed: bool, tmp_path: Path) -> None:
    """This holds through a snapshot, from the log of a checkpoint, and in a snapshot of that log; also for
    renamed states.
    """
    before = before_of({"old": case.before}, {key: {"old": case.value} for key in range(5)})
    name, job, change = declared_after(case, renamed=renamed)
    changes = planned(before, job)
    assert changes == [change]
    check_changes(changes, "there")
    found = Outcome(before, job, tmp_path, changes)
    assert found.keys == {STEP: 5}
    assert found.rows == {key: {name: case.kept} for key in range(5)}
    assert sorted(row["key"] for row in found.table(name)) == list(range(5))
    assert [row["value"] for row in found.table(name)] == [case.kept] * 5


@by_id(REFUSED)
def test_states_that_do_not_fit_are_refused(case: Case) -> None:
    """The error has the declared and the found type."""
    before = before_of({"old": case.before}, {key: {"old": case.value} for key in range(3)})
    job = after_of({"old": case.after})
    changes = planned(before, job)
    assert changes == [Change(STEP, "old", "old", "refused", case.detail)]
    with pytest.raises(StateMismatchError) as caught:
        check_changes(changes, "file:///there")
    assert str(caught.value) == (
        f"The state in file:///there does not fit the job: step 0/old: {case.detail}. Restore the older job, or "
        "declare a new state next to the old one, and let the job take the values over."
    )


SHARED_CASES = [
    kept("a setting", ps.Setting(int), ps.Setting(int), {None: 5, AT: 6}, [5, 6]),
    widened(
        "a record", ps.Setting(Room), ps.Setting(RoomWithNote), {None: ROOM}, with_note(), [WITHOUT_NOTE]
    ),
    widened(
        "a broadcast state",
        ps.BroadcastState(str, Room),
        ps.BroadcastState(str, RoomWithNote),
        {"a": ROOM, "b": ROOM},
        with_note(),
        [WITHOUT_NOTE] * 2,
    ),
]


@by_id(SHARED_CASES)
@pytest.mark.parametrize("renamed", [False, True], ids=["", "renamed"])
def test_shared_states_are_taken_over(case: Case, renamed: bool, tmp_path: Path) -> None:
    """Like keyed ones; also where no slot has written its header since."""
    before = before_of({"old": case.before}, {}, shared={"old": case.value})
    name, job, change = declared_after(case, renamed=renamed)
    changes = planned(before, job)
    assert changes == [change]
    found = Outcome(before, job, tmp_path, changes)
    assert [row["value"] for row in found.table(name)] == case.kept
    assert found.keys == {STEP: 0}


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        (ps.Setting(int), ps.Setting(str), unlike("string", "int64")),
        (ps.Setting(Room), ps.Setting(RoomWithOwner), lacking("owner")),
        (ps.BroadcastState(int, int), ps.BroadcastState(str, int), unlike("string", "int64")),
        (ps.BroadcastState(str, Room), ps.BroadcastState(str, RoomWithOwner), lacking("owner")),
        (ps.Setting(int), ps.BroadcastState(str, int), unlike("BroadcastState", "Setting", "")),
    ],
)
def test_shared_states_that_do_not_fit_are_refused(before: Any, after: Any, detail: str) -> None:
    """As keyed ones are."""
    stored = before_of({"old": before}, {})
    assert planned(stored, after_of({"old": after})) == [Change(STEP, "old", "old", "refused", detail)]
