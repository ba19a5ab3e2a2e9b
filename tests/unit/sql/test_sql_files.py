"""SQL files as jobs: loading, functions beside the file, EXPLAIN, names and parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ExpressionError, JobDefinitionError
from penstock.jobs.job_loader import load_job
from penstock.testing import JobHarness

FILE = """
CREATE STREAM readings (room STRING NOT NULL, celsius DOUBLE, at BIGINT, WATERMARK FOR at AS at - INTERVAL '5' SECOND)
  WITH ('binding' = 'jsonl:in', 'idle-timeout' = '1m');
CREATE FUNCTION twice AS 'rules_of_rooms:twice';
SET 'limit' = 30.0;
CREATE VIEW unread AS SELECT room FROM readings;
EXPLAIN SELECT room FROM readings WHERE celsius > ${limit};
INSERT INTO warm SELECT room, twice(celsius) AS two FROM readings WHERE celsius > ${limit};
SELECT room, window_end, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(at), INTERVAL '1' MINUTE))
GROUP BY room, window_start, window_end;
"""
RULES = "def twice(celsius: float) -> float:\n    return celsius * 2\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "rules_of_rooms.py").write_text(RULES)
    path = tmp_path / "rooms.sql"
    path.write_text(FILE)
    return path


def test_a_file_is_a_job_of_its_name(file: Path) -> None:
    """With its bindings, the console for a query on its own, and the module that it names as code."""
    loaded = load_job(str(file))
    assert loaded.job.name == "rooms"
    assert loaded.job.bound_by_default() == {"readings": "jsonl:in", "result": "console:"}
    assert list(loaded.code) == ["rules_of_rooms.py"]
    run = JobHarness(loaded.job)
    run.send(
        "readings", *({"room": "a", "celsius": celsius, "at": celsius * 1000} for celsius in (20, 31, 70))
    )
    run.finish()
    assert [one.two for one in run.output("warm")] == [62.0, 140.0]
    assert [one.n for one in run.output("result")] == [2, 1]


def test_explain_shows_steps_and_their_state(file: Path) -> None:
    """In the file for a query, and by the job for all of it. A view that nothing reads is no part of it."""
    loaded = load_job(str(file))
    (text,) = loaded.explanations
    assert text == (
        "1. data stream readings (room STRING, celsius DOUBLE, at BIGINT)\n"
        "   event time: at; the watermark is 5s behind\n"
        "2. step result.where of 1: celsius > ${limit}\n"
        "   shuffled by source partition\n"
        "   setting limit: 30.0, which commands to result.where change\n"
        "   state: none\n"
        "3. select result.select of 2: room\n"
        "4. sink result of 3"
    )
    job = ps.Job("rooms")
    job.sql(FILE.replace("CREATE FUNCTION", "-- CREATE FUNCTION").replace("twice(celsius)", "celsius"))
    assert "unread" not in job.explain()
    assert "state windows: the open windows of each key, with records BIGINT" in job.explain()


def test_a_command_changes_a_parameter(file: Path) -> None:
    """That of the step which the statement is named after."""
    run = JobHarness(load_job(str(file)).job)
    run.send_command("set", "warm.where", {"limit": 10.0})
    run.send("readings", {"room": "a", "celsius": 20.0, "at": 1})
    run.run_batch()
    assert [one.two for one in run.output("warm")] == [40.0]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("os:system", "no file os.py beside the SQL file"),
        ("../rules_of_rooms:twice", "is not the place of a function"),
        ("rules_of_rooms:none", "has no 'none'"),
        ("rules_of_rooms", "is not the place of a function"),
    ],
)
def test_functions_come_only_from_beside_the_file(file: Path, place: str, reason: str) -> None:
    file.write_text(FILE.replace("rules_of_rooms:twice", place))
    with pytest.raises(ExpressionError, match=reason) as caught:
        load_job(str(file))
    assert "rooms.sql: " in str(caught.value)
    assert "(at line 4, column 26)" in str(caught.value)


def test_a_text_from_python_names_no_modules() -> None:
    with pytest.raises(ExpressionError, match=r"give the function to job.sql"):
        ps.Job("rooms").sql(FILE)


def test_an_attribute_and_other_files_are_refused(file: Path) -> None:
    with pytest.raises(JobDefinitionError, match="leave out ':job'"):
        load_job(f"{file}:job")
    (file.parent / "broken.sql").write_bytes(b"\xff")
    with pytest.raises(JobDefinitionError, match="is not text in UTF-8"):
        load_job(str(file.parent / "broken.sql"))


def test_a_function_that_raises_makes_a_dead_letter() -> None:
    """Of the records for which it raises only, by value and on columns."""
    job = ps.Job("rooms")
    job.data_stream("readings", schema="room STRING, n BIGINT")

    def per_value(n: int) -> float:
        return 10 / n

    def on_columns(n):  # type: ignore[no-untyped-def]
        if 0 in n.to_pylist():
            raise ValueError("there is a zero")
        return n

    functions = {
        "per_value": per_value,
        "on_columns": ps.SqlFunction(on_columns, takes=("BIGINT",), returns="DOUBLE", on_columns=True),
    }
    job.sql(
        "INSERT INTO one SELECT per_value(n) AS x FROM readings;"
        "INSERT INTO two SELECT on_columns(n) AS x FROM readings",
        functions=functions,
    )
    run = JobHarness(job)
    run.send("readings", *({"room": "a", "n": n} for n in (5, 0, None, 2)))
    run.run_batch()
    assert [one.x for one in run.output("one")] == [2.0, None, 5.0]
    assert [one.x for one in run.output("two")] == [5.0, None, 2.0]
    reasons = [letter.reason for letter in run.dead_letters()]
    assert sorted("zero" in reason for reason in reasons) == [True, True]


def test_a_refused_text_leaves_the_job_as_it_was() -> None:
    job = ps.Job("rooms")
    job.data_stream("readings", schema="room STRING")
    before = list(job.graph.nodes)
    with pytest.raises(ExpressionError):
        job.sql("INSERT INTO a SELECT room FROM readings; INSERT INTO b SELECT nothing FROM readings")
    assert list(job.graph.nodes) == before


def test_a_lookup_takes_the_newest_row_of_its_key() -> None:
    """As known when the record is processed; without a row there are nulls."""
    job = ps.Job("rooms")
    job.sql("""
        CREATE STREAM readings (room STRING NOT NULL, celsius DOUBLE);
        CREATE STREAM rooms (name STRING NOT NULL, floor INT);
        INSERT INTO placed SELECT r.room, r.celsius, d.floor FROM readings AS r
        LEFT JOIN rooms FOR SYSTEM_TIME AS OF PROCTIME() AS d ON r.room = d.name
    """)
    run = JobHarness(job, parallelism=2)
    run.send("rooms", {"name": "a", "floor": 1}, {"name": "a", "floor": 2})
    run.send("readings", {"room": "a", "celsius": 1.0}, {"room": "b", "celsius": 2.0})
    run.run_batch()
    run.send("rooms", {"name": "b", "floor": 3})
    run.rescale(1)
    run.send("readings", {"room": "a", "celsius": 3.0}, {"room": "b", "celsius": 4.0})
    run.run_batch()
    found = sorted((one.room, one.celsius, one.floor) for one in run.output("placed"))
    assert found == [("a", 1.0, 2), ("a", 3.0, 2), ("b", 2.0, None), ("b", 4.0, 3)]
