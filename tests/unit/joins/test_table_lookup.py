"""Lookups in an external table: bulk queries by key, missing rows, stable replays, and refused declarations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import penstock as ps
from penstock.errors import ExternalSystemError, JobDefinitionError, SchemaError
from penstock.testing import JobHarness

READINGS = "room STRING, celsius DOUBLE"
ROOMS = "id STRING, floor INT"


def described(*, keyed: bool = False, **options: Any) -> ps.Job:
    """Return a job that adds its room's floor to a reading."""
    job = ps.Job("rooms")
    readings: Any = job.data_stream("readings", schema=READINGS)
    rooms = job.lookup_table("rooms", schema=ROOMS)
    given = {"on": ("room", "id"), "fields": ["room", "celsius", "floor"]} | options
    stream = readings.key_by("room") if keyed else readings
    stream.lookup_join("floors", rooms, **given).sink_to("known")
    return job


def reading(room: str | None, celsius: float = 20.0) -> dict[str, Any]:
    return {"room": room, "celsius": celsius}


def floors(run: JobHarness) -> list[tuple[str, int | None]]:
    return [(one.room, one.floor) for one in run.outcomes[-1].output("known")]


def send(run: JobHarness, *rooms: str | None) -> list[tuple[str, int | None]]:
    run.send("readings", *map(reading, rooms))
    run.run_batch()
    return floors(run)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    ("options", "expected", "letters"),
    [
        ({}, ["a", "b"], 0),
        ({"how": "left"}, ["a", "b", None, "x"], 0),
        ({"missing": "dead_letter"}, ["a", "b"], 2),
    ],
    ids=["inner", "left", "dead_letter"],
)
def test_a_record_gets_the_row_of_its_key(
    keyed: bool, options: dict[str, Any], expected: list[str | None], letters: int
) -> None:
    """It is the current row; a record without one, or with a null key, is handled as declared."""
    job = ps.Job("rooms")
    readings: Any = job.data_stream("readings", schema="room STRING, n INT")
    stream = readings.key_by("n") if keyed else readings
    rooms = job.lookup_table("rooms", schema=ROOMS)
    stream.lookup_join("floors", rooms, on=("room", "id"), fields=["room", "floor"], **options).sink_to(
        "known"
    )
    run = JobHarness(job, parallelism=2)
    run.tables["rooms"].rows = [{"id": "a", "floor": 1}, {"id": "b", "floor": 2}, {"id": "c", "floor": 3}]
    run.send("readings", *({"room": room, "n": n} for n, room in enumerate(["a", None, "b", "x"])))
    outcome = run.run_batch()
    known = {"a": 1, "b": 2}
    assert sorted(map(str, ((one.room, one.floor) for one in outcome.output("known")))) == sorted(
        str((room, known.get(str(room)))) for room in expected
    )
    assert [letter.reason for letter in run.dead_letters()] == [
        "the table 'rooms' has no row for it"
    ] * letters


def test_all_keys_of_a_micro_batch_are_one_query() -> None:
    """Each key is queried once, in any number; records without a key are not queried."""
    run = JobHarness(described(keyed=True, how="left"), parallelism=1)
    send(run, "a", "b", "a", None, "c", "b")
    (query,) = run.tables["rooms"].queries
    assert sorted(query) == [("a",), ("b",), ("c",)]


def test_the_table_as_it_is_when_the_record_is_processed() -> None:
    """Neither an older nor a newer state of the table counts."""
    run = JobHarness(described())
    run.tables["rooms"].rows = [{"id": "a", "floor": 1}]
    assert send(run, "a") == [("a", 1)]
    run.tables["rooms"].rows = [{"id": "a", "floor": 2}]
    assert send(run, "a") == [("a", 2)]


@examples(30)
@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=6), min_size=1, max_size=3), st.booleans(), st.data()
)
def test_a_replay_sees_the_same_rows(batches: list[list[str]], keyed: bool, data: st.DataObject) -> None:
    """This holds after the table has changed, and while it is unavailable."""
    run = JobHarness(described(keyed=keyed, how="left"), parallelism=2)
    table = run.tables["rooms"]
    for rooms in batches:
        table.rows = [{"id": name, "floor": data.draw(st.integers(0, 9))} for name in "abc"]
        before = send(run, *rooms)
        table.rows, table.is_away = [], True
        again = run.crash()
        table.is_away = False
        if rooms:
            assert again is not None
            assert [(one.room, one.floor) for one in again.output("known")] == before


def test_an_answer_holds_for_the_whole_micro_batch() -> None:
    """A key in several partitions has one row, so that its replay can have it too."""
    run = JobHarness(described(how="left"), parallelism=1)
    table = run.tables["rooms"]
    table.rows = [{"id": "a", "floor": 1}]
    for partition in range(4):
        run.send("readings", reading("a"), partition=partition)
    run.run_batch()
    assert floors(run) == [("a", 1)] * 4
    assert table.queries == [[("a",)]]


def test_keys_of_several_fields() -> None:
    """All fields must be equal; a key with a null has no row."""
    job = ps.Job("cities")
    visits = job.data_stream("visits", schema="country STRING, code INT, n INT")
    cities = job.lookup_table("cities", schema="land STRING, code INT, name STRING")
    on = [("country", "land"), ("code", "code")]
    found = visits.lookup_join("names", cities, on=on, how="left", fields=["n", "name"])
    found.sink_to("named")
    run = JobHarness(job)
    run.tables["cities"].rows = [
        {"land": "de", "code": 1, "name": "Bonn"},
        {"land": "fr", "code": 1, "name": "Lyon"},
    ]
    pairs = [("de", 1), ("fr", 1), ("de", 2), ("de", None), (None, 1), ("fr", 1)]
    run.send("visits", *({"country": land, "code": code, "n": n} for n, (land, code) in enumerate(pairs)))
    assert [(one.n, one.name) for one in run.run_batch().output("named")] == [
        (0, "Bonn"),
        (1, "Lyon"),
        (2, None),
        (3, None),
        (4, None),
        (5, "Lyon"),
    ]


def test_conditions_and_parameters_on_rows() -> None:
    """A row for which the condition is false does not match; a failing expression is a dead letter."""
    settings = {"least": ps.Setting(int, 1)}
    fields = ["room", "100 DIV floor AS floor"]
    run = JobHarness(described(where="floor >= ${least}", settings=settings, fields=fields))
    run.tables["rooms"].rows = [
        {"id": name, "floor": floor} for name, floor in [("a", 0), ("b", 1), ("c", 2)]
    ]
    assert send(run, "a", "b", "c") == [("b", 100), ("c", 50)]
    run.send_command("set", "floors", {"least": 0})
    assert send(run, "a", "b", "c") == [("b", 100), ("c", 50)]
    assert [letter.stream for letter in run.dead_letters()] == ["readings"]


def test_several_rows_for_a_key_are_a_dead_letter() -> None:
    """A row that does not fit is one as well; other records continue."""
    run = JobHarness(described())
    run.tables["rooms"].rows = [{"id": "a", "floor": 1}, {"id": "a", "floor": 2}, {"id": "b", "floor": 3}]
    assert send(run, "a", "b") == [("b", 3)]
    assert [letter.reason for letter in run.dead_letters()] == ["the table 'rooms' has several rows for it"]


def test_a_table_that_is_away_ends_the_run_and_no_record() -> None:
    """Its records are no dead letters: they are processed again."""
    run = JobHarness(described(missing="dead_letter"))
    run.tables["rooms"].is_away = True
    run.send("readings", reading("a"))
    with pytest.raises(ExternalSystemError, match="does not answer"):
        run.run_batch()


def test_a_record_keeps_its_event_time() -> None:
    """This serves windows after the lookup, whether or not the time field is selected."""
    job = ps.Job("rooms")
    marks = ps.Watermarks.bounded("1s")
    readings = job.data_stream(
        "readings", schema="room STRING, at TIMESTAMP", event_time="at", watermarks=marks
    )
    rooms = job.lookup_table("rooms", schema=ROOMS)
    found = readings.lookup_join("floors", rooms, on=("room", "id"), fields=["floor"])
    found.key_by("floor").window(ps.TumblingWindows("10s")).count("visits").sink_to("counts")
    run = JobHarness(job)
    run.tables["rooms"].rows = [{"id": "a", "floor": 1}, {"id": "b", "floor": 1}]
    at = ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:12Z", "2026-01-01T00:00:32Z"]
    run.send("readings", *({"room": room, "at": one} for room, one in zip("abab", at, strict=True)))
    run.run_batch()
    counts = run.finish().output("counts") + run.outcomes[0].output("counts")
    assert sorted(one.value for one in counts) == [1, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": None}, "say which fields are equal in the stream and in the table 'rooms'"),
        ({"on": ("celsius", "id")}, r"'celsius' \(double\) and 'id' \(string\) differ in type"),
        ({"wait": "3s"}, "deleted and wait are for dimensions that are streams"),
        ({"deleted": "floor IS NULL"}, "deleted and wait are for dimensions that are streams"),
        ({"how": "right"}, "how='right' is not one of 'inner', 'left'"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    """When the job is described."""
    with pytest.raises(JobDefinitionError, match=message):
        described(**options)


def test_a_table_is_declared_once_and_used() -> None:
    """By the job that it belongs to."""
    job = ps.Job("rooms")
    readings = job.data_stream("readings", schema=READINGS)
    rooms = job.lookup_table("rooms", schema=ROOMS)
    with pytest.raises(JobDefinitionError, match="two tables named 'rooms'"):
        job.lookup_table("rooms", schema=ROOMS)
    readings.sink_to("out")
    with pytest.raises(JobDefinitionError, match="Nothing is looked up in the table 'rooms'"):
        job.check()
    other = ps.Job("others").data_stream("readings", schema=READINGS)
    with pytest.raises(JobDefinitionError, match="belongs to another job"):
        other.lookup_join("floors", rooms, on=("room", "id"))


def test_rows_of_another_type_are_a_mistake_of_the_test() -> None:
    """The error says so."""
    run = JobHarness(described())
    run.tables["rooms"].rows = [{"id": 5, "floor": 1}]
    run.send("readings", reading("a"))
    with pytest.raises(SchemaError, match="A row of the table 'rooms'"):
        run.run_batch()
