"""Evolution: what becomes of stored states is planned, and a snapshot and a checkpoint's own log both come out so."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stored_jobs import JobWith, Keep, StepWith, StoredJob, captured, first_of_two, job_of, plan_of, read_from

import penstock as ps
from penstock.checkpoints.evolution import Change, check_changes, plan_changes
from penstock.errors import StateError, StateMismatchError
from penstock.jobs.restore import declared_state
from penstock.records.schemas import record_type
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.snapshots.snapshot_reader import read_table
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import json_rows
from penstock.state.slot_tables import SlotTables
from penstock.testing.memory_entries import MemoryEntries

GROUPS = 4
STEP = "step 0"
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


@dataclass
class Case:
    """A state before and after, what a key had, and what is planned: the outcome, its detail, and what the key has."""

    id: str
    before: Any
    after: Any
    value: Any
    outcome: str
    detail: str = ""
    kept: Any = None


ROOM = Room("attic", 5)
KEPT = [
    Case("a value", ps.ValueState(int), ps.ValueState(int), 7, "kept", kept=7),
    Case(
        "a record",
        ps.ValueState(Room),
        ps.ValueState(Room),
        ROOM,
        "kept",
        kept={"name": "attic", "limit": 5},
    ),
    Case(
        "a field that is optional now",
        ps.ValueState(Room),
        ps.ValueState(RoomOrNone),
        ROOM,
        "kept",
        kept={"name": "attic", "limit": 5},
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
        "struct<name: string, limit: int64> becomes struct<name: string, limit: int64, note: string>",
        {"name": "attic", "limit": 5, "note": None},
    ),
    Case(
        "an optional field more inside",
        ps.ValueState(House),
        ps.ValueState(HouseWithNote),
        House(ROOM),
        "widened",
        "struct<room: struct<name: string not null, limit: int64 not null>> becomes struct<room: struct<name: string "
        "not null, limit: int64 not null, note: string>>",
        {"room": {"name": "attic", "limit": 5, "note": None}},
    ),
    Case(
        "an optional field more in a list",
        ps.ListState(Room),
        ps.ListState(RoomWithNote),
        [ROOM, ROOM],
        "widened",
        "list<item: struct<name: string, limit: int64>> becomes list<item: struct<name: string, limit: int64, note: "
        "string>>",
        [{"name": "attic", "limit": 5, "note": None}] * 2,
    ),
    Case(
        "an optional field more in a map",
        ps.MapState(str, Room),
        ps.MapState(str, RoomWithNote),
        {"a": ROOM},
        "widened",
        "map<string, struct<name: string, limit: int64>> becomes map<string, struct<name: string, limit: int64, note: "
        "string>>",
        {"a": {"name": "attic", "limit": 5, "note": None}},
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
        [
            {"at": None, "value": {"name": "attic", "limit": 5, "note": None}},
            {"at": "2026-01-02T00:00:00.000000Z", "value": None},
        ],
    ),
]
LACKING = "must have a value, and what is stored may have none; make it optional"
REFUSED = [
    Case(
        "another type",
        ps.ValueState(int),
        ps.ValueState(str),
        7,
        "refused",
        "it is declared as string, and found as int64: not every value fits",
    ),
    Case(
        "narrowed",
        ps.ValueState("a BIGINT"),
        ps.ValueState("a INT"),
        record_type("a BIGINT").python_class(7),
        "refused",
        "it is declared as struct<a: int32>, and found as struct<a: int64>: not every value fits",
    ),
    Case(
        "64 bits to double",
        ps.ValueState(int),
        ps.ValueState(float),
        7,
        "refused",
        "it is declared as double, and found as int64: not every value fits",
    ),
    Case(
        "fewer digits",
        ps.ValueState("a DECIMAL(7, 3)"),
        ps.ValueState("a DECIMAL(7, 4)"),
        record_type("a DECIMAL(7, 3)").python_class(decimal.Decimal(1)),
        "refused",
        "it is declared as struct<a: decimal128(7, 4)>, and found as struct<a: decimal128(7, 3)>: not every value fits",
    ),
    Case(
        "a field less",
        ps.ValueState(RoomWithNote),
        ps.ValueState(Room),
        RoomWithNote("attic", 5, "dusty"),
        "refused",
        "it is declared as struct<name: string, limit: int64>, and found as struct<name: string, limit: int64, note: "
        "string>: the field 'note' would be lost",
    ),
    Case(
        "another kind",
        ps.ValueState(int),
        ps.ReducingState(int, first_of_two),
        7,
        "refused",
        "it is declared as ReducingState, and found as ValueState",
    ),
    Case(
        "a list instead of a temporal state",
        ps.TemporalState(int),
        ps.ListState(int),
        {None: 1},
        "refused",
        "it is declared as ListState, and found as TemporalState",
    ),
    Case(
        "a required field more",
        ps.ValueState(Room),
        ps.ValueState(RoomWithOwner),
        ROOM,
        "refused",
        f"the field 'owner' {LACKING}",
    ),
    Case(
        "a field that is required now",
        ps.ValueState(RoomOrNone),
        ps.ValueState(Room),
        RoomOrNone(None, 5),
        "refused",
        f"the field 'name' {LACKING}",
    ),
    Case(
        "a required field more in a list",
        ps.ListState(Room),
        ps.ListState(RoomWithOwner),
        [ROOM],
        "refused",
        f"the field 'owner' {LACKING}",
    ),
    Case(
        "a required field more in a map",
        ps.MapState(str, Room),
        ps.MapState(str, RoomWithOwner),
        {"a": ROOM},
        "refused",
        f"the field 'owner' {LACKING}",
    ),
    Case(
        "a required field more in an accumulator",
        ps.AggregatingState(Keep(), accumulator=Room),
        ps.AggregatingState(Keep(), accumulator=RoomWithOwner),
        ROOM,
        "refused",
        f"the field 'owner' {LACKING}",
    ),
    Case(
        "a required field more inside",
        ps.ValueState(House),
        ps.ValueState(HouseWithOwner),
        House(ROOM),
        "refused",
        "it is declared as struct<room: struct<name: string not null, limit: int64 not null, owner: string not null>>, "
        "and found as struct<room: struct<name: string not null, limit: int64 not null>>: the field 'owner' "
        f"{LACKING}",
    ),
    Case(
        "a field inside that is required now",
        ps.ValueState(HouseOrNone),
        ps.ValueState(House),
        HouseOrNone(RoomOrNone(None, 5)),
        "refused",
        "it is declared as struct<room: struct<name: string not null, limit: int64 not null>>, and found as "
        f"struct<room: struct<name: string, limit: int64 not null>>: the field 'name' {LACKING}",
    ),
]


def by_id(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


def before_of(states: dict[str, Any], rows: dict[Any, dict[str, Any]], **more: Any) -> StoredJob:
    """A job with one step over int keys, which stands behind two micro-batches."""
    keys = list(rows)
    first = {key: rows[key] for key in keys}
    # The second one changes a key, so that the log has a version of parts as well.
    second = {key: rows[key] for key in keys[:1]}
    return StoredJob(JobWith([StepWith(states, (int,), [first, second], **more)], GROUPS), 2)


def after_of(states: dict[str, Any], key_groups: int = GROUPS) -> ps.Job:
    return job_of([StepWith(states, (int,), [{}, {}])], key_groups)


def after_with(case: Case, renamed_from: str | None) -> Any:
    """The declaration after, with the name that the state had before."""
    declared = copy.copy(case.after)
    declared.renamed_from = renamed_from
    return declared


class Outcome:
    """What the changed job finds: through a snapshot and a seed, in the log itself, and in a snapshot of the log."""

    def __init__(self, before: StoredJob, job: ps.Job, folder: Path, changes: list[Change]) -> None:
        self.state = declared_state(job)
        captured(folder / "before", before.state, "arrow", before.read)
        self.keys = write_seed(Snapshot.at(str(folder / "before")), self.state, 3, changes, folder / "seed")
        plan = plan_of(job, 2)
        (node,) = plan.graph.steps()
        self.core = plan.core(node)
        seeded: dict[Any, dict[str, Any]] = {}
        read_from(folder / "seed", self.state, 3)(
            node.id, lambda _, entries: seeded.update(self._rows(entries)) or []
        )
        logged: dict[Any, dict[str, Any]] = {}
        before.read(node.id, lambda _, entries: logged.update(self._rows(entries)) or [])
        assert seeded == logged
        self.rows = logged
        # As of a job that went on with its checkpoint.
        self.of_log = captured(folder / "of-log", self.state, "csv", before.read)
        of_seed = captured(folder / "of-seed", self.state, "csv", read_from(folder / "seed", self.state, 3))
        assert of_seed.digest == self.of_log.digest
        self.folder = folder

    def _rows(self, entries: dict[str, bytes]) -> dict[Any, dict[str, Any]]:
        tables = SlotTables(self.core.state_schema, MemoryEntries(dict(entries)))
        groups = [table.all_rows() for table in tables.tables.values()]
        rows = [row for group in groups for row in json_rows(group)]
        assert len(rows) == tables.keys
        return {row.pop("key"): row for row in rows}

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a state in the snapshot of the log."""
        names = {table.name for table in self.of_log.tables}
        (found_name,) = names & {f"{STEP}/{name}", f"{STEP}/shared/{name}"}
        found = read_table(open_store(str(self.folder / "of-log")), self.of_log, found_name)
        return [row for batch in found for row in json_rows(batch)]


def planned(before: StoredJob, job: ps.Job, **options: bool) -> list[Change]:
    return plan_changes(declared_state(job).steps, before.state.steps, **options)


@by_id([*KEPT, *WIDENED])
@pytest.mark.parametrize("renamed", [False, True], ids=["", "renamed"])
def test_states_that_fit_are_taken_over(case: Case, renamed: bool, tmp_path: Path) -> None:
    """As planned: through a snapshot, from the log of a checkpoint, and in a snapshot of that log; also renamed."""
    before = before_of({"old": case.before}, {key: {"old": case.value} for key in range(5)})
    name = "new" if renamed else "old"
    job = after_of({name: after_with(case, "old" if renamed else None)})
    changes = planned(before, job)
    outcome: Any = "renamed" if renamed and case.outcome == "kept" else case.outcome
    assert changes == [Change(STEP, name, "old", outcome, case.detail)]
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


def test_the_log_itself_refuses_what_is_not_a_wider_type() -> None:
    """Should a worker ever be given it: nothing is read as something else."""
    before = before_of({"old": ps.ValueState(int)}, {1: {"old": 7}})
    plan = plan_of(after_of({"old": ps.ValueState(str)}), 2)
    (node,) = plan.graph.steps()
    schema = plan.core(node).state_schema
    with pytest.raises(
        StateError, match="'old' is declared as string, and int64 is stored: not every value fits"
    ):
        before.read(node.id, lambda _, entries: [SlotTables(schema, MemoryEntries(entries)) and b""])


def test_states_that_are_new_begin_empty_and_those_no_longer_declared_go(tmp_path: Path) -> None:
    """A key that held only what is gone is gone as well."""
    before = before_of(
        {"kept": ps.ValueState(int), "gone": ps.ListState(str)},
        {1: {"kept": 1, "gone": ["x"]}, 2: {"gone": ["y"]}, 3: {"kept": 3}},
    )
    job = after_of({"new": ps.MapState(str, int), "kept": ps.ValueState(int)})
    changes = planned(before, job)
    assert changes == [
        Change(STEP, "new", "", "added", "it begins without values"),
        Change(STEP, "kept", "kept", "kept"),
        Change(STEP, "gone", "gone", "dropped", "the step no longer declares it"),
    ]
    check_changes(changes, "there")
    found = Outcome(before, job, tmp_path, changes)
    assert found.rows == {1: {"new": None, "kept": 1}, 3: {"new": None, "kept": 3}}
    assert found.keys == {STEP: 2}


def test_a_state_may_take_the_name_of_another(tmp_path: Path) -> None:
    """What has the name now is what it is, and an earlier name counts only where the name itself is not found."""
    before = before_of({"a": ps.ValueState(int), "b": ps.ValueState(int)}, {1: {"a": 1, "b": 2}})
    job = after_of({"b": ps.ValueState(int, renamed_from="a")})
    changes = planned(before, job)
    assert changes == [
        Change(STEP, "b", "b", "kept"),
        Change(STEP, "a", "a", "dropped", "the step no longer declares it"),
    ]
    assert Outcome(before, job, tmp_path, changes).rows == {1: {"b": 2}}


def test_keys_of_another_type_are_refused() -> None:
    """Before anything else is said of the step."""
    before = before_of({"old": ps.ValueState(int)}, {1: {"old": 7}})
    job = job_of([StepWith({"old": ps.ValueState(str)}, (str,), [{}, {}])], GROUPS)
    detail = "keys are declared as string, and found as int64"
    assert planned(before, job) == [Change(STEP, "key", "key", "refused", detail)]
    with pytest.raises(StateMismatchError, match="step 0/key: keys are declared as string"):
        check_changes(planned(before, job), "there")


def test_all_that_does_not_fit_is_told_at_once() -> None:
    """So that nobody mends one state after the other."""
    states = {"a": ps.ValueState(int), "b": ps.ValueState(int), "c": ps.ValueState(int)}
    before = before_of(states, {1: {"a": 7}})
    job = after_of({"a": ps.ValueState(str), "b": ps.ListState(int), "c": ps.ValueState(int)})
    with pytest.raises(StateMismatchError) as caught:
        check_changes(planned(before, job), "there")
    assert "step 0/a: it is declared as string" in str(caught.value)
    assert "; step 0/b: it is declared as ListState, and found as ValueState. " in str(caught.value)


@pytest.mark.parametrize("states", [{"old": ps.ValueState(int), "all": ps.Setting(int)}, {}])
def test_state_of_a_step_that_is_gone_is_left_behind_only_on_demand(
    states: dict[str, Any], tmp_path: Path
) -> None:
    """By --allow-non-restored-state; a new step begins empty."""
    steps = [
        StepWith({"old": ps.ValueState(int)}, (int,), [{1: {"old": 7}}, {}]),
        StepWith(states, (int,), [{1: {"old": 7}} if states else {}, {}]),
    ]
    before = StoredJob(JobWith(steps, GROUPS), 2)
    job = after_of({"old": ps.ValueState(int)})
    gone = "the step is no longer in the job"
    refused = [change for change in planned(before, job) if change.step == "step 1"]
    assert refused == [Change("step 1", n, n, "refused", gone) for n in states or [""]]
    with pytest.raises(StateMismatchError) as caught:
        check_changes(planned(before, job), "there")
    assert str(caught.value) == (
        "there holds state of the step 'step 1', which the job no longer has. Give the step its name back, or leave "
        "its state behind with --allow-non-restored-state."
    )
    allowed = planned(before, job, allow_non_restored_state=True)
    assert [c.outcome for c in allowed if c.step == "step 1"] == ["dropped"] * len(refused)
    check_changes(allowed, "there")
    captured(tmp_path / "before", before.state, "arrow", before.read)
    state = declared_state(job)
    snapshot = Snapshot.at(str(tmp_path / "before"))
    assert write_seed(snapshot, state, 3, allowed, tmp_path / "seed") == {STEP: 1}
    more = declared_state(job_of(steps, GROUPS))
    back = plan_changes(more.steps, state.steps)
    assert [c for c in back if c.step == "step 1"] == [
        Change("step 1", name, "", "added", "the step is new") for name in states
    ]


SHARED = {None: 5, AT: 6}
SHARED_CASES = [
    Case("a setting", ps.Setting(int), ps.Setting(int), SHARED, "kept", kept=[5, 6]),
    Case(
        "a record",
        ps.Setting(Room),
        ps.Setting(RoomWithNote),
        {None: ROOM},
        "widened",
        "struct<name: string, limit: int64> becomes struct<name: string, limit: int64, note: string>",
        [{"name": "attic", "limit": 5, "note": None}],
    ),
    Case(
        "a broadcast state",
        ps.BroadcastState(str, Room),
        ps.BroadcastState(str, RoomWithNote),
        {"a": ROOM, "b": ROOM},
        "widened",
        "struct<name: string, limit: int64> becomes struct<name: string, limit: int64, note: string>",
        [{"name": "attic", "limit": 5, "note": None}] * 2,
    ),
]


@by_id(SHARED_CASES)
@pytest.mark.parametrize("renamed", [False, True], ids=["", "renamed"])
def test_shared_states_are_taken_over(case: Case, renamed: bool, tmp_path: Path) -> None:
    """As keyed ones are; also where no slot has written its header since."""
    before = before_of({"old": case.before}, {}, shared={"old": case.value})
    name = "new" if renamed else "old"
    job = after_of({name: after_with(case, "old" if renamed else None)})
    changes = planned(before, job)
    outcome: Any = "renamed" if renamed and case.outcome == "kept" else case.outcome
    assert changes == [Change(STEP, name, "old", outcome, case.detail)]
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


def test_a_keyed_state_is_no_shared_one() -> None:
    """What becomes the other is new, and what it was goes."""
    before = before_of({"old": ps.ValueState(int)}, {1: {"old": 7}})
    assert planned(before, after_of({"old": ps.Setting(int)})) == [
        Change(STEP, "old", "old", "dropped", "the step no longer declares it"),
        Change(STEP, "old", "", "added", "it begins without values"),
    ]


def test_a_described_state_is_read_as_the_declared_one() -> None:
    """The columns that a checkpoint describes lead to earlier names, as those of the job itself do."""
    state = declared_state(after_of({"new": ps.ValueState(int, renamed_from="old")}))
    plan = plan_of(after_of({"new": ps.ValueState(int, renamed_from="old")}), 1)
    (node,) = plan.graph.steps()
    assert state.steps[STEP].schema.equals(plan.core(node).state_schema, check_metadata=True)
    assert pa.schema(state.steps[STEP].schema).field("new").metadata == {b"renamed_from": b"old"}
