"""Bulk answers: what becomes of an operation by its status."""

from __future__ import annotations

import pytest

from penstock.stores.bulk_answers import BulkItem, Fate, fate_of

ERROR = {"type": "mapper_parsing_exception", "reason": "no", "caused_by": {"type": "x", "reason": "not\n7"}}


@pytest.mark.parametrize(
    ("operation", "status", "fate"),
    [
        ("index", 200, Fate.DONE),
        ("index", 201, Fate.DONE),
        ("index", 409, Fate.DONE),
        ("index", 400, Fate.REFUSED),
        ("index", 413, Fate.REFUSED),
        ("index", 429, Fate.PASSING),
        ("index", 503, Fate.PASSING),
        ("index", 403, Fate.FATAL),
        ("index", 404, Fate.FATAL),
        ("delete", 404, Fate.DONE),
    ],
)
def test_a_status_has_a_fate(operation: str, status: int, fate: Fate) -> None:
    """That of a deletion differs where nothing is there."""
    assert fate_of(operation, BulkItem(status)) is fate


def test_an_index_that_is_missing_is_not_a_document_that_is_missing() -> None:
    """Its deletion has an error."""
    assert fate_of("delete", BulkItem(404, {"type": "index_not_found_exception"})) is Fate.FATAL


def test_a_reason_is_one_line() -> None:
    """With its causes."""
    assert BulkItem(400, ERROR).reason == "mapper_parsing_exception: no; x: not 7"
    assert BulkItem(400, "text").reason == "text"
