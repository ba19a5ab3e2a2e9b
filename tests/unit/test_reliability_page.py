"""RELIABILITY.md is what the results say."""

from __future__ import annotations

from pathlib import Path

import pytest
from reliability import PAGE, RESULTS, note_result, noting, rendered, results_in, soaked_in


def test_the_page_is_made_from_the_results() -> None:
    """Whoever has new results renders it again: make reliability."""
    assert PAGE.read_text() == rendered(results_in(RESULTS), soaked_in(RESULTS))


def test_results_of_a_fault_are_added_up(tmp_path: Path) -> None:
    """The newest of each stretch of seeds counts."""
    for count, seeds in ((3, "1 to 5"), (4, "6 to 9"), (5, "6 to 9")):
        note_result("random schedules", "kill", count, 0, "-k x", seeds, tmp_path)
    assert "| kill | 8 | 0 | 1 to 9 |" in rendered(results_in(tmp_path))


def kill_until(stops: BaseException, folder: Path) -> None:
    """Inject faults of two kinds, until a violation is found or there is nothing to kill."""
    with noting("kills", "-k x", "7", folder) as injected:
        injected.add("kill of a worker", 2)
        injected.add("kill of a driver")
        raise stops


def test_a_violation_counts_for_the_fault_before_it(tmp_path: Path) -> None:
    """The test fails as it would without a record of it, and what it had injected so far is on record."""
    with pytest.raises(AssertionError, match="lost"):
        kill_until(AssertionError("a record is lost"), tmp_path)
    page = rendered(results_in(tmp_path))
    assert "| kill of a driver | 1 | 1 | 7 |" in page
    assert "| kill of a worker | 2 | 0 | 7 |" in page


def test_what_is_skipped_is_not_on_record(tmp_path: Path) -> None:
    """Where a server is not installed, nothing was shown."""
    with pytest.raises(pytest.skip.Exception):
        kill_until(pytest.skip.Exception("no broker"), tmp_path)
    assert results_in(tmp_path) == []
