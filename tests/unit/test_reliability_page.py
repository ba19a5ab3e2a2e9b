"""RELIABILITY.md is what the results say."""

from __future__ import annotations

from pathlib import Path

from reliability import PAGE, RESULTS, note_result, rendered, results_in


def test_the_page_is_made_from_the_results() -> None:
    """Whoever has new results renders it again: make reliability."""
    assert PAGE.read_text() == rendered(results_in(RESULTS))


def test_results_of_a_fault_are_added_up(tmp_path: Path) -> None:
    """The newest of each stretch of seeds counts."""
    for count, seeds in ((3, "1 to 5"), (4, "6 to 9"), (5, "6 to 9")):
        note_result("random schedules", "kill", count, 0, "-k x", seeds, tmp_path)
    assert "| kill | 8 | 0 | 1 to 9 |" in rendered(results_in(tmp_path))
