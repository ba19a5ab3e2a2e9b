"""The tables in docs/connectors.md are what the conformance kit has found."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance_page import PAGE, RESULTS, missing, note_conformance, rendered, results_in

from penstock.testing.connectors import Conformance, NonconformingError, Outcome


def test_the_page_is_made_from_the_results() -> None:
    """Whoever has new results renders it again: make conformance."""
    page = PAGE.read_text()
    assert rendered(page, results_in(RESULTS)) == page


def test_a_connector_has_one_row_and_its_reasons(tmp_path: Path) -> None:
    """The newest result counts; reasons are listed once."""
    file = tmp_path / "results.jsonl"
    for limit in ("within 9 s", "within 5 s"):
        outcomes = [
            Outcome("slow server", "pass", limit),
            Outcome("credentials", "not applicable", "no login"),
        ]
        note_conformance(Conformance("a store", "sink", "exactly once", outcomes), file)
    assert "\n| a store | exactly once | within 5 s | - |\n" in rendered("", results_in(file))
    assert "\n- credentials: no login (a store).\n" in rendered("", results_in(file))


def test_a_connector_that_fails_is_not_on_the_page(tmp_path: Path) -> None:
    """Its test fails."""
    file = tmp_path / "results.jsonl"
    with pytest.raises(NonconformingError):
        note_conformance(
            Conformance("a store", "sink", "exactly once", [Outcome("replay", "fail", "lost")]), file
        )
    assert not file.exists()


def test_a_connector_that_was_not_tried_is_missed() -> None:
    """A test that is skipped, since its server is not there, does not leave an old row."""
    results = results_in(RESULTS)
    assert missing(PAGE.read_text(), results) == []
    tried = [one for one in results if (one.role, one.system) != ("source", "Kafka")]
    assert missing(PAGE.read_text(), tried) == ["source Kafka"]
