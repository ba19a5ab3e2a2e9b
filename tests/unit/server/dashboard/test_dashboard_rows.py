"""What the pages on state, savepoints and errors show of what they have read, as rows of tables."""

from __future__ import annotations

from penstock.jobs.dead_letters import FoundLetter
from penstock.operators.record_blocks import DeadLetter
from penstock.savepoints.state_pages import StoredKey
from penstock.server.dashboard.failures_page import letter_rows, reason_rows
from penstock.server.dashboard.savepoints_page import savepoint_row
from penstock.server.dashboard.state_page import key_rows, list_state_names
from penstock.server.service.job_resources import Savepoint
from penstock.server.service.view_resources import dead_letters_of


def stored(key: object, values: dict[str, object] | None, timers: object = None) -> StoredKey:
    return StoredKey(key=key, key_group=3, bytes=2048, values=values, timers=timers, windows=None)


def test_keys_show_what_they_hold() -> None:
    """Each state in a column of its own, whatever its name, timers and windows behind them; what is long is cut."""
    found = (
        stored("a", {"limit": None, ":x": [1, "ü"]}, timers=[{"at": 5}]),
        stored([1, "b"], {"limit": 7, ":x": "y" * 500}),
        stored("c", None),
    )
    names = list_state_names(found)
    assert names == ["limit", ":x", "timers"]
    first, second, third = key_rows(found, names)
    assert first == {
        "key": "a",
        "group": 3,
        "size": "2.0 KiB",
        "s0": "",
        "s1": '[1, "ü"]',
        "s2": '[{"at": 5}]',
    }
    assert (second["key"], second["s0"], second["s1"], second["s2"]) == (
        '[1, "b"]',
        "7",
        "y" * 160 + " ...",
        "",
    )
    assert third["s0"] == "too large"
    assert list_state_names(()) == []


def letter(reason: str, offset: int, raw: bytes = b"{}", step: str = "") -> FoundLetter:
    return FoundLetter(DeadLetter(reason, "hits", step, "00000", offset, raw), 0, 7)


def test_dead_letters_are_shown_newest_first() -> None:
    """With a sample, as text where it is some; and the reasons by how many have them."""
    found = dead_letters_of(
        [letter("late", 1), letter("late", 2, b"\xff"), letter("boom", 3, b"x" * 300, "count")]
    )
    rows = letter_rows(found)
    assert [row["place"] for row in rows] == ["hits 00000 3", "hits 00000 2", "hits 00000 1"]
    assert [row["sample"] for row in rows] == ["x" * 200, "/w==", "{}"]
    assert (rows[0]["size"], rows[0]["step"], rows[1]["step"]) == ("300 B", "count", "-")
    assert [(row["reason"], row["count"]) for row in reason_rows(found)] == [("late", "2"), ("boom", "1")]


def test_a_savepoint_is_a_row() -> None:
    """With the time as people read it."""
    found = Savepoint(id="sp-1", job_name="rooms", batch=4, created_at="2026-12-01T12:00:00+00:00", uri="/x")
    assert savepoint_row(found) == {"id": "sp-1", "job": "rooms", "batch": 4, "taken": "2026-12-01 12:00:00"}
