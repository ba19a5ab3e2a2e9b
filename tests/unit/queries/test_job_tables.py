"""Queries over the committed state of a job: what they read, what they name, and files that go away meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rooms_job import Rooms, committed_rooms

from penstock.checkpoints import committed_state
from penstock.errors import CheckpointError, QueryError
from penstock.queries import job_tables
from penstock.queries.job_tables import query_job
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.named_tables import find_wanted

STEP = 'state."step 0"'


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    return committed_rooms(tmp_path / "cp", monkeypatch)


def ask(rooms: Rooms, query: str, **limits: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = query_job(str(rooms.folder), query, QueryLimits(**limits)).rows.to_pylist()
    return found


def test_a_job_has_the_tables_of_its_snapshots(rooms: Rooms) -> None:
    """A row for each key, single tables, settings; the answer names the micro-batch."""
    assert query_job(str(rooms.folder), "select 1").batch == 2
    expected = [{"key_0": key, "limit": key * 2} for key in range(10)]
    assert ask(rooms, f"select * from {STEP} order by 1") == expected
    assert ask(rooms, 'select key, value from state."step 0/limit" order by 1') == [
        {"key": row["key_0"], "value": row["limit"]} for row in expected
    ]
    assert ask(rooms, 'select value from state."step 0/shared/factor"') == [{"value": 0.5}]
    joined = f'select count(*) as n from {STEP} join state."step 0/limit" on key = key_0 and value = "limit"'
    assert ask(rooms, joined) == [{"n": 10}]


def test_only_columns_that_are_named_are_read(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys count whatever is read of them; a star reads all columns; other tables are not opened."""
    read: list[list[str]] = []
    real = job_tables.latest_rows
    monkeypatch.setattr(
        job_tables, "latest_rows", lambda *given: (read.append(list(given[2])), real(*given))[1]
    )
    assert ask(rooms, f"select count(*) as n from {STEP}") == [{"n": 10}]
    assert ask(rooms, f"select max(key_0) as last from {STEP}") == [{"last": 9}]
    assert read == [["key"]] * 4
    assert len(ask(rooms, f'select key_0, "LIMIT" from {STEP}')) == 10
    assert read[4:] == [["key", "limit"]] * 2
    read.clear()
    ask(rooms, 'select value from state."step 0/shared/factor"')
    with pytest.raises(QueryError):
        ask(rooms, f"select nothing from {STEP}")
    assert read == []


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select a, sum(b) from state.s where c > 1 group by a", {"a", "b", "c"}),
        ("select count(*) from state.s", set()),
        ("select * from state.s", None),
        ("select s.* from state.s", None),
        ("from state.s", None),
        ("select x from state.s as x", None),
        ("select s from state.s", None),
        ("select count(s) from state.s", None),
        ("select columns('a.*') from state.s", None),
        ("select a from state.s natural join state.t", None),
        ("select x from state.s as t(x, y)", None),
        ("select #1 from state.s", None),
        ("summarize state.s", None),
        ("pivot state.s on a using sum(b)", None),
        ("select exists(select * from state.s)", None),
        ("with w as (select b from state.s) select b from w", {"b"}),
        ("selec", None),
    ],
)
def test_columns_are_left_out_only_if_no_name_can_mean_them(query: str, columns: set[str] | None) -> None:
    """Whatever a query names in another way than by the name of a column is read whole."""
    found = find_wanted(query, ["s", "t"]).columns
    assert (found is None) == (columns is None)
    assert columns is None or columns <= (found or set())


def test_files_that_go_away_meanwhile_are_read_anew(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a newer micro-batch, which the answer names; an error if the job has not gone on."""
    stored = committed_state.stored_slots
    failures = [0]

    def away(place: Path, batch: int, node: str, files: Any, numbers: Any) -> Iterator[Any]:
        if failures[0] < 2:
            failures[0] += 1
            rooms.commit(2 + failures[0])
            raise CheckpointError("The checkpoint is damaged: a file is missing.")
        yield from stored(place, batch, node, files, numbers)

    monkeypatch.setattr(committed_state, "stored_slots", away)
    found = query_job(str(rooms.folder), f"select count(*) as n from {STEP}")
    assert (found.batch, found.rows.to_pylist()) == (4, [{"n": 10}])

    def gone(place: Path, batch: int, node: str, files: Any, numbers: Any) -> Iterator[Any]:
        raise CheckpointError("The checkpoint is damaged: a file is missing.")

    monkeypatch.setattr(committed_state, "stored_slots", gone)
    with pytest.raises(CheckpointError, match="a file is missing"):
        query_job(str(rooms.folder), f"select count(*) as n from {STEP}")


def test_errors_say_what_can_be_named(rooms: Rooms) -> None:
    """With the position; and what is too large for the memory is not read to its end."""
    with pytest.raises(QueryError, match=r'Steps with keys are state."step 0"'):
        ask(rooms, "select * from state.nowhere")
    with pytest.raises(QueryError, match=r"at line 1, column 8"):
        ask(rooms, f"select nothing from {STEP}")
    with pytest.raises(QueryError, match="more than 3 rows"):
        ask(rooms, f"select * from {STEP}", rows=3)
    with pytest.raises(QueryError, match="needs more than 1e-05 MiB"):
        ask(rooms, f"select * from {STEP}", memory_mb=1e-5)
