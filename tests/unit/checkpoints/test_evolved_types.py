"""Types of states that have changed: those that fit are taken over with their values, and others are refused."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass
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


@dataclass
class Room:
    name: str
    limit: int


@dataclass
class RoomWithNote:
    name: str
    limit: int
    note: str | None = None


@dataclass
class RoomWithOwner:
    name: str
    limit: int
    owner: str


@dataclass
class RoomOrNone:
    name: str | None
    limit: int


@dataclass
class House:
    room: Room


@dataclass
class HouseWithNote:
    room: RoomWithNote


@dataclass
class HouseWithOwner:
    room: RoomWithOwner


@dataclass
class HouseOrNone:
    room: RoomOrNone


def refused(id: str, before: Any, after: Any, value: Any, detail: str) -> Case:  # noqa: A002  # as of a case
    return Case(id, before, after, value, "refused", detail)


ROOM = Room("attic", 5)
ATTIC = {"name": "attic", "limit": 5}
WITHOUT_NOTE = {**ATTIC, "note": None}
MORE = "struct<name: string, limit: int64> becomes struct<name: string, limit: int64, note: string>"
KEPT = [
    Case("a value", ps.ValueState(int), ps.ValueState(int), 7, "kept", kept=7),
    Case("a record", ps.ValueState(Room), ps.ValueState(Room), ROOM, "kept", kept=ATTIC),
    Case(
        "a field that is optional now",
        ps.ValueState(Room),
        ps.ValueState(RoomOrNone),
        ROOM,
        "kept",
        kept=ATTIC,
    ),
]
WIDENED = [
    *(
        Case(
            f"{before} to {after}",
            ps.ValueState(f"a {before}"),
            ps.ValueState(f"a {after}"),
            record_type(f"a {before}").python_class(value),
            "widened",
            f"struct<a: {stored}> becomes struct<a: {declared}>",
            {"a": kept},
        )
        for before, after, value, stored, declared, kept in [
            ("TINYINT", "SMALLINT", -128, "int8", "int16", -128),
            ("SMALLINT", "INT", 300, "int16", "int32", 300),
            ("INT", "BIGINT", 2**31 - 1, "int32", "int64", 2**31 - 1),
            ("INT", "DOUBLE", -(2**31), "int32", "double", -(2.0**31)),
            ("FLOAT", "DOUBLE", 0.5, "float", "double", 0.5),
            (
                "DECIMAL(5, 2)",
                "DECIMAL(7, 3)",
                decimal.Decimal("123.45"),
                "decimal128(5, 2)",
                "decimal128(7, 3)",
                "123.450",
            ),
            ("ARRAY<INT>", "ARRAY<BIGINT>", [1, 2], "list<item: int32>", "list<item: int64>", [1, 2]),
        ]
    ),
    Case(
        "an optional field more",
        ps.ValueState(Room),
        ps.ValueState(RoomWithNote),
        ROOM,
        "widened",
        MORE,
        WITHOUT_NOTE,
    ),
    Case(
        "an optional field more inside",
        ps.ValueState(House),
        ps.ValueState(HouseWithNote),
        House(ROOM),
        "widened",
        "struct<room: struct<name: string not null, limit: int64 not null>> becomes struct<room: struct<name: string "
        "not null, limit: int64 not null, note: string>>",
        {"room": WITHOUT_NOTE},
    ),
    Case(
        "an optional field more in a list",
        ps.ListState(Room),
        ps.ListState(RoomWithNote),
        [ROOM, ROOM],
        "widened",
        "list<item: struct<name: string, limit: int64>> becomes list<item: struct<name: string, limit: int64, note: "
        "string>>",
        [WITHOUT_NOTE] * 2,
    ),
    Case(
        "an optional field more in a map",
        ps.MapState(str, Room),
        ps.MapState(str, RoomWithNote),
        {"a": ROOM},
        "widened",
        "map<string, struct<name: string, limit: int64>> becomes map<string, struct<name: string, limit: int64, note: "
        "string>>",
        {"a": WITHOUT_NOTE},
    ),
    Case(
        "a temporal state",
        ps.TemporalState(Room),
        ps.TemporalState(RoomWithNote),
        {None: ROOM, AT: None},
        "widened",
        "list<item: struct<at: timestamp[us, tz=UTC], value: struct<name: string not null, limit: int64 not null>>> "
        "becomes list<item: struct<at: timestamp[us, tz=UTC], value: struct<name: string not null, limit: int64 not "
        "null, note: string>>>",
        [{"at": None, "value": WITHOUT_NOTE}, {"at": "2026-01-02T00:00:00.000000Z", "value": None}],
    ),
]
LACKING = "must have a value, and what is stored may have none; make it optional"
REFUSED = [
    refused(
        "another type",
        ps.ValueState(int),
        ps.ValueState(str),
        7,
        "it is declared as string, and found as int64: not every value fits",
    ),
    refused(
        "narrowed",
        ps.ValueState("a BIGINT"),
        ps.ValueState("a INT"),
        record_type("a BIGINT").python_class(7),
        "it is declared as struct<a: int32>, and found as struct<a: int64>: not every value fits",
    ),
    refused(
        "64 bits to double",
        ps.ValueState(int),
        ps.ValueState(float),
        7,
        "it is declared as double, and found as int64: not every value fits",
    ),
    refused(
        "fewer digits",
        ps.ValueState("a DECIMAL(7, 3)"),
        ps.ValueState("a DECIMAL(7, 4)"),
        record_type("a DECIMAL(7, 3)").python_class(decimal.Decimal(1)),
        "it is declared as struct<a: decimal128(7, 4)>, and found as struct<a: decimal128(7, 3)>: not every value fits",
    ),
    refused(
        "a field less",
        ps.ValueState(RoomWithNote),
        ps.ValueState(Room),
        RoomWithNote("attic", 5, "dusty"),
        "it is declared as struct<name: string, limit: int64>, and found as struct<name: string, limit: int64, note: "
        "string>: the field 'note' would be lost",
    ),
    refused(
        "another kind",
        ps.ValueState(int),
        ps.ReducingState(int, first_of_two),
        7,
        "it is declared as ReducingState, and found as ValueState",
    ),
    refused(
        "a list instead of a temporal state",
        ps.TemporalState(int),
        ps.ListState(int),
        {None: 1},
        "it is declared as ListState, and found as TemporalState",
    ),
    refused(
        "a required field more",
        ps.ValueState(Room),
        ps.ValueState(RoomWithOwner),
        ROOM,
        f"the field 'owner' {LACKING}",
    ),
    refused(
        "a field that is required now",
        ps.ValueState(RoomOrNone),
        ps.ValueState(Room),
        RoomOrNone(None, 5),
        f"the field 'name' {LACKING}",
    ),
    refused(
        "a required field more in a list",
        ps.ListState(Room),
        ps.ListState(RoomWithOwner),
        [ROOM],
        f"the field 'owner' {LACKING}",
    ),
    refused(
        "a required field more in a map",
        ps.MapState(str, Room),
        ps.MapState(str, RoomWithOwner),
        {"a": ROOM},
        f"the field 'owner' {LACKING}",
    ),
    refused(
        "a required field more in an accumulator",
        ps.AggregatingState(Keep(), accumulator=Room),
        ps.AggregatingState(Keep(), accumulator=RoomWithOwner),
        ROOM,
        f"the field 'owner' {LACKING}",
    ),
    refused(
        "a required field more inside",
        ps.ValueState(House),
        ps.ValueState(HouseWithOwner),
        House(ROOM),
        "it is declared as struct<room: struct<name: string not null, limit: int64 not null, owner: string not null>>, "
        "and found as struct<room: struct<name: string not null, limit: int64 not null>>: the field 'owner' "
        f"{LACKING}",
    ),
    refused(
        "a field inside that is required now",
        ps.ValueState(HouseOrNone),
        ps.ValueState(House),
        HouseOrNone(RoomOrNone(None, 5)),
        "it is declared as struct<room: struct<name: string not null, limit: int64 not null>>, and found as "
        f"struct<room: struct<name: string, limit: int64 not null>>: the field 'name' {LACKING}",
    ),
]


@by_id([*KEPT, *WIDENED])
@pytest.mark.parametrize("renamed", [False, True], ids=["", "renamed"])
def test_states_that_fit_are_taken_over(case: Case, renamed: bool, tmp_path: Path) -> None:
    """As planned: through a snapshot, from the log of a checkpoint, and in a snapshot of that log; also renamed."""
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
    """With what is declared and what was found."""
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


SHARED = {None: 5, AT: 6}
SHARED_CASES = [
    Case("a setting", ps.Setting(int), ps.Setting(int), SHARED, "kept", kept=[5, 6]),
    Case(
        "a record", ps.Setting(Room), ps.Setting(RoomWithNote), {None: ROOM}, "widened", MORE, [WITHOUT_NOTE]
    ),
    Case(
        "a broadcast state",
        ps.BroadcastState(str, Room),
        ps.BroadcastState(str, RoomWithNote),
        {"a": ROOM, "b": ROOM},
        "widened",
        MORE,
        [WITHOUT_NOTE] * 2,
    ),
]


@by_id(SHARED_CASES)
@pytest.mark.parametrize("renamed", [False, True], ids=["", "renamed"])
def test_shared_states_are_taken_over(case: Case, renamed: bool, tmp_path: Path) -> None:
    """As keyed ones are; also where no slot has written its header since."""
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
        (
            ps.Setting(int),
            ps.Setting(str),
            "it is declared as string, and found as int64: not every value fits",
        ),
        (ps.Setting(Room), ps.Setting(RoomWithOwner), f"the field 'owner' {LACKING}"),
        (
            ps.BroadcastState(int, int),
            ps.BroadcastState(str, int),
            "it is declared as string, and found as int64: not every value fits",
        ),
        (ps.BroadcastState(str, Room), ps.BroadcastState(str, RoomWithOwner), f"the field 'owner' {LACKING}"),
        (
            ps.Setting(int),
            ps.BroadcastState(str, int),
            "it is declared as BroadcastState, and found as Setting",
        ),
    ],
)
def test_shared_states_that_do_not_fit_are_refused(before: Any, after: Any, detail: str) -> None:
    """As keyed ones are."""
    stored = before_of({"old": before}, {})
    assert planned(stored, after_of({"old": after})) == [Change(STEP, "old", "old", "refused", detail)]
