"""Queries over snapshots: what they see, what they must not, and errors with their position."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from audited_opens import opened
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from snapshot_support import EVENTS, LOG, ROOMS, SETTINGS, write_snapshot

import penstock as ps
from penstock.errors import DamagedSnapshotError, NotThereError, QueryError
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.snapshot_tables import query_snapshot
from penstock.testing import JobHarness


class Keep(ps.ProcessFunction):
    """Several states of a key, some of which it does not have."""

    celsius = ps.ValueState(float)
    times = ps.ValueState(int)
    room = ps.ValueState(str)
    room_state = ps.ValueState(str)
    seen = ps.ListState(int)
    limit = ps.Setting(int, 3)

    def process_record(self, record: Any, ctx: ps.Context) -> list[Any]:
        self.times.set((self.times.get() or 0) + 1)
        self.seen.add(record.number)
        if record.number % 2:
            self.celsius.set(record.number / 2)
            self.room.set("odd")
        return []


def one(reading: Any) -> int:
    return 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A savepoint of a job with a key of one field and one of two."""
    job = ps.Job("rooms", key_groups=4)
    readings = job.data_stream("readings", schema="room STRING, number INT")
    readings.key_by("room").process("keep", Keep(), output="room STRING").sink_to("out")
    readings.key_by("room", "number").process("two fields", Keep(), output="room STRING").sink_to("more")
    readings.key_by(one, key_type=int).process("computed", Keep(), output="room STRING").sink_to("rest")
    run = JobHarness(job, parallelism=2)
    run.send("readings", *({"room": "abc"[number % 3], "number": number} for number in range(9)))
    run.send_command("set", "keep", {"limit": 7})
    run.run_batch()
    assert run.dead_letters() == []
    folder = str(tmp_path_factory.mktemp("queries") / "savepoint")
    run.savepoint(folder)
    return folder


def rows(place: str, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = query_snapshot(place, query).to_pylist()
    return found


def test_a_step_is_a_row_for_each_key_with_its_states(place: str) -> None:
    """Null where a key has no value; the key has the name of its field, and a state of that name another."""
    query = "select room, times, celsius, seen, room_state_state, room_state from state.keep order by room"
    none = {"times": 3, "room_state_state": "odd", "room_state": None}
    assert rows(place, query) == [
        {"room": "a", "celsius": 1.5, "seen": [0, 3, 6], **none},
        {"room": "b", "celsius": 3.5, "seen": [1, 4, 7], **none},
        {"room": "c", "celsius": 2.5, "seen": [2, 5, 8], **none},
    ]
    assert rows(place, "select key, times from state.computed") == [{"key": 1, "times": 9}]
    columns = "room, sum(times) as times, count(room_state_state) as n"
    query = f'select {columns} from state."two fields" group by room order by 1'
    assert rows(place, query) == [
        {"room": "a", "times": 3, "n": 1},
        {"room": "b", "times": 3, "n": 2},
        {"room": "c", "times": 3, "n": 1},
    ]
    assert query_snapshot(place, "select sum(times) from state.keep").schema.field(0).type == pa.int64()


def test_single_tables_have_their_own_names(place: str) -> None:
    """Also settings; names count in any case, and the columns of a result are told apart."""
    assert rows(place, 'select value from state."keep/shared/limit"') == [{"value": 7}]
    assert rows(place, 'select count(*) as n from STATE."keep/SEEN"') == [{"n": 3}]
    assert query_snapshot(place, "select times, times from state.keep").column_names == ["times", "times_2"]


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet", "arrow"])
def test_every_format_is_queried_alike(tmp_path: Path, file_format: str) -> None:
    """Also tables without a key, and structs."""
    write_snapshot(str(tmp_path / "dump"), file_format=file_format)
    write = str(tmp_path / "dump")
    assert rows(
        write, 'select count(*) as n, max(value.temperature) as most from state."thermostat/setting"'
    ) == [{"n": len(ROOMS), "most": 24.75}]
    assert rows(write, "select setting.mode as mode from state.thermostat limit 1") == [{"mode": "heat"}]
    assert rows(write, 'select count(tags) as n from state."thermostat/events"') == [
        {"n": sum(one["tags"] is not None for one in LOG)}
    ]


def test_only_the_tables_that_are_named_are_read(tmp_path: Path) -> None:
    """A damaged table does not matter to a query over another one."""
    place = str(tmp_path / "dump")
    manifest = write_snapshot(place, ((SETTINGS, ROOMS), (EVENTS, LOG)), parts=1)
    (tmp_path / "dump" / manifest.table("thermostat/events").files[0].path).write_text("damaged")
    assert rows(place, "select count(*) as n from state.thermostat") == [{"n": len(ROOMS)}]
    with pytest.raises(DamagedSnapshotError):
        rows(place, 'select count(*) from state."thermostat/events"')


WRONG = [
    ("select keyy from state.keep", 'Referenced column "keyy" not found', 1, 8),
    ("select *\nfrom state.nowhere", "Table with name nowhere does not exist!", 2, 6),
    ("selec 1", 'Syntax error at or near "selec"', 1, 1),
    ("select cast('x' as int)", "Could not convert string 'x' to INT32", 1, 8),
    ("select nosuch(times) from state.keep", "nosuch does not exist", 1, 8),
]


@pytest.mark.parametrize(("query", "sentence", "line", "column"), WRONG, ids=[case[0] for case in WRONG])
def test_an_error_has_its_position(place: str, query: str, sentence: str, line: int, column: int) -> None:
    """With the line of the query and a caret."""
    with pytest.raises(QueryError) as caught:
        rows(place, query)
    message = str(caught.value)
    assert sentence in message
    assert f"(at line {line}, column {column})" in message
    shown = message.split("\n")
    assert shown[1] == f"  {query.splitlines()[line - 1]}"
    assert shown[2].index("^") == column + 1


def test_a_query_that_names_nothing_known_is_told_what_there_is(place: str) -> None:
    """The steps with keys, and how single tables are named."""
    with pytest.raises(
        QueryError, match=r'Steps with keys are state.computed, state.keep, state."two fields"'
    ):
        rows(place, "select * from state.nowhere")


FORBIDDEN = [
    ("select * from read_csv('/etc/passwd')", "no files or addresses"),
    ("select * from read_text('/etc/passwd')", "no files or addresses"),
    ("select * from glob('/etc/*')", "no files or addresses"),
    ("select * from '/etc/passwd'", "does not exist"),
    ("from 'https://example.com/x.parquet'", "no files or addresses"),
    ("select * from places", "does not exist"),
    ("copy (select 1) to '/tmp/stolen'", "this is COPY"),
    ("attach '/tmp/other.db'", "this is ATTACH"),
    ("install httpfs", "this is LOAD"),
    ("load httpfs", "this is LOAD"),
    ("set memory_limit = '100GB'", "this is SET"),
    ("pragma version", "this is PRAGMA"),
    ("call pragma_version()", "this is CALL"),
    ("create table x(a int)", "this is CREATE"),
    ("drop view state.keep", "this is DROP"),
    ("insert into state.keep values (1)", "Queries only read"),
    ("select 1; select 2", "these are 2 statements"),
    ("", "these are 0 statements"),
    ("select getenv('HOME')", "does not exist"),
]


@pytest.mark.parametrize(("query", "sentence"), FORBIDDEN, ids=[case[0] for case in FORBIDDEN])
def test_a_query_reaches_nothing_but_the_state(place: str, query: str, sentence: str) -> None:
    """Neither files nor addresses, settings, extensions or variables of this program."""
    places = pa.table({"secret": [1]})
    with pytest.raises(QueryError) as caught:
        rows(place, query)
    assert sentence in str(caught.value)
    assert places.num_rows == 1
    assert not Path("/tmp/stolen").exists()


def test_a_time_that_is_over_before_the_query_begins_ends_it(place: str) -> None:
    """As on a machine that stands still meanwhile."""
    with pytest.raises(QueryError, match=r"took more than 1e-06 s"):
        query_snapshot(place, "select * from range(100000000000) t(i) where i < 0", QueryLimits(seconds=1e-6))


def test_limits_end_a_query(place: str) -> None:
    """Of time, memory and rows; each error says what to do."""
    with pytest.raises(QueryError, match=r"took more than 0.2 s. Ask for less"):
        query_snapshot(place, "select * from range(100000000000) t(i) where i < 0", QueryLimits(seconds=0.2))
    with pytest.raises(QueryError, match="needs more than 50 MiB of memory"):
        query_snapshot(place, "select list(i) from range(100000000) t(i)", QueryLimits(memory_mb=50))
    with pytest.raises(QueryError, match="more than 10 rows"):
        query_snapshot(place, "select * from range(11)", QueryLimits(rows=10))
    with pytest.raises(QueryError, match="The limit rows of a query is 0"):
        QueryLimits(rows=0)


def test_without_the_engine_the_extra_is_named(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to install it."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(QueryError, match=r"pip install 'penstock\[sql\]'"):
        rows(place, "select 1")


def test_a_place_without_a_snapshot_is_told(tmp_path: Path) -> None:
    """As everywhere."""
    with pytest.raises(NotThereError):
        rows(str(tmp_path / "nothing"), "select 1")


def test_times_are_in_utc(place: str) -> None:
    """Whatever the zone of the machine."""
    query = "select timestamptz '2024-01-01 00:00:00+02:00' as at, current_setting('TimeZone') as zone"
    assert rows(place, query) == [{"at": dt.datetime(2023, 12, 31, 22, tzinfo=dt.UTC), "zone": "UTC"}]


WORDS = """
    select from where group by order limit state . keep key times celsius ( ) , * = > 'a' "b" 1 count sum with as
    join on union all ; read_csv('/etc/passwd') copy to attach install set pragma '/tmp/x' -- /* x
""".split()  # noqa: SIM905  # a list of words


@examples(60)
@given(st.lists(st.sampled_from(WORDS), max_size=10).map(" ".join))
def test_a_malformed_query_is_a_sentence_and_opens_nothing(place: str, query: str) -> None:
    """Whatever the words."""
    with opened() as heard:
        try:
            query_snapshot(place, query, QueryLimits(seconds=5))
        except QueryError as e:
            first = str(e).split("\n")[0]  # either outcome is right
            assert "Traceback" not in str(e)  # noqa: PT017  # as above
            assert first.rstrip(")")[-1:].isalnum() or first.endswith((".", "!", "?")), first
    assert [one for one in heard if not one.startswith(place)] == []
