"""Lookups of SQL in tables outside the job: rows of now, nulls, replays, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

import penstock as ps
from penstock.errors import ExpressionError
from penstock.testing import JobHarness

DECLARED = """
    CREATE STREAM readings (room STRING, celsius DOUBLE) WITH ('binding' = 'jsonl:in');
    CREATE TABLE rooms (id STRING, floor INT, owner STRING, PRIMARY KEY (id))
      WITH ('binding' = 'postgresql://reader@db/plant/rooms?password=env:PLANT_PASSWORD');
"""
NOW = "rooms FOR SYSTEM_TIME AS OF PROCTIME()"
ROOMS = "SELECT room AS id, 1 AS floor, '' AS owner FROM readings"
ROWS = [{"id": "a", "floor": 1, "owner": "Ada"}, {"id": "b", "floor": 2, "owner": None}]


def described(text: str, **tables: str) -> ps.Job:
    job = ps.Job("rooms")
    for name, schema in tables.items():
        job.lookup_table(name, schema=schema)
    job.sql(DECLARED + text)
    return job


def known(job: ps.Job, *rooms: str | None) -> list[tuple[object, ...]]:
    """What the sink `known` gets for readings of some rooms, and again in a replay without the table."""
    run = JobHarness(job, parallelism=2)
    run.tables["rooms"].rows = ROWS
    run.send("readings", *({"room": room, "celsius": 20.0 + n} for n, room in enumerate(rooms)))
    run.run_batch()
    found = sorted(map(str, run.output("known")))
    run.tables["rooms"].rows = []
    again = run.crash()
    assert again is not None
    assert sorted(map(str, again.output("known"))) == found
    assert run.dead_letters() == []
    return sorted((msgspec.structs.astuple(one) for one in run.output("known")), key=str)


def test_a_declared_table_is_looked_up() -> None:
    """By the equal columns of ON; the binding is that of the table, and only tables that are read need one."""
    job = described(
        f"CREATE TABLE idle (id STRING) WITH ('binding' = 'postgresql://db/plant/idle');"
        f"INSERT INTO known SELECT r.room, d.floor FROM readings AS r JOIN {NOW} AS d ON r.room = d.id"
    )
    assert job.bound_by_default() == {
        "readings": "jsonl:in",
        "rooms": "postgresql://reader@db/plant/rooms?password=env:PLANT_PASSWORD",
    }
    assert "looked up in the table rooms by room = id" in job.explain()
    assert known(job, "a", "x", None, "b", "a") == [("a", 1), ("a", 1), ("b", 2)]


def test_a_record_without_a_row_has_nulls_in_a_left_join() -> None:
    """Also one with a null as its key, and one whose row does not fit the rest of ON, whose parameter is a setting."""
    job = described(
        "SET 'least' = 2;"
        f"INSERT INTO known SELECT r.room, d.* FROM readings r LEFT JOIN {NOW} d "
        "ON d.id = r.room AND d.floor >= ${least}"
    )
    assert known(job, "a", "b", None) == [
        ("a", None, None, None),
        ("b", "b", 2, None),
        (None, None, None, None),
    ]


def test_a_view_looks_up_and_a_table_twice() -> None:
    """Two joins with one table are two steps, whose table is declared once; EXPLAIN leaves nothing behind."""
    job = described(
        f"CREATE VIEW placed AS SELECT r.room, d.floor FROM readings r JOIN {NOW} d ON r.room = d.id;"
        f"EXPLAIN SELECT room FROM placed;"
        f"INSERT INTO known SELECT p.room, p.floor, d.owner FROM placed p JOIN {NOW} d ON p.room = d.id"
    )
    assert list(job.graph.lookups) == ["rooms"]
    assert known(job, "a", "b") == [("a", 1, "Ada"), ("b", 2, None)]


def test_a_table_of_the_job_may_be_named() -> None:
    """Whatever SQL declares beside it."""
    job = described(
        "INSERT INTO known SELECT r.room, d.head FROM readings r JOIN owners FOR SYSTEM_TIME AS OF PROCTIME() AS d "
        "ON r.room = d.room",
        owners="room STRING, head STRING",
    )
    run = JobHarness(job)
    run.tables["owners"].rows = [{"room": "a", "head": "Ada"}]
    run.send("readings", {"room": "a", "celsius": 1.0})
    run.run_batch()
    assert [(one.room, one.head) for one in run.output("known")] == [("a", "Ada")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "SELECT r.room FROM readings r JOIN rooms d ON r.room = d.id",
            "'rooms' is a table outside the job, in which records are looked up: JOIN rooms FOR SYSTEM_TIME AS OF",
        ),
        ("SELECT id FROM rooms", "'rooms' is a table outside the job"),
        (
            "SELECT r.room FROM readings r JOIN rooms FOR SYSTEM_TIME AS OF r.celsius AS d ON r.room = d.id",
            "'rooms' has its rows of now alone: FOR SYSTEM_TIME AS OF PROCTIME",
        ),
        (
            f"SELECT r.room FROM readings r JOIN {NOW} d ON r.celsius > d.floor",
            "needs an equal key of both sides",
        ),
        (
            f"SELECT r.room FROM readings r JOIN {NOW} d ON r.celsius = d.floor",
            r"differ in type. Convert one first",
        ),
        (f"SELECT r.room FROM readings r RIGHT JOIN {NOW} d ON r.room = d.id", "how"),
        (f"SELECT r.room FROM readings r JOIN {NOW} d ON r.room = d.name", "'d' has no column 'name'"),
        (
            f"INSERT INTO rooms SELECT d.id, d.floor, d.owner FROM readings r JOIN {NOW} d ON r.room = d.id",
            "'rooms' is inserted into; look records up in a table of another name",
        ),
        (
            f"INSERT INTO known SELECT d.* FROM readings r JOIN {NOW} d ON r.room = d.id; INSERT INTO rooms {ROOMS}",
            "Records are looked up in 'rooms'; insert into a table of another name",
        ),
        ("CREATE VIEW owners AS SELECT room FROM readings", "There is a table 'owners' already"),
    ],
)
def test_what_a_text_may_not_say(text: str, told: str) -> None:
    """Which leaves the job as it was: with the tables that it had."""
    job = ps.Job("rooms")
    job.lookup_table("owners", schema="id STRING")
    with pytest.raises(ExpressionError, match=told):
        job.sql(DECLARED + text)
    assert list(job.graph.lookups) == ["owners"]
    assert not job.graph.nodes
    assert not job.bindings
