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


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("index_closed_exception", "closed"),
        ("routing_missing_exception", "routing is required for [a]/[1]"),
        (
            "illegal_argument_exception",
            "only write ops with an op_type of create are allowed in data streams",
        ),
        ("illegal_argument_exception", "no write index is defined for alias [a]. The write index may be"),
        ("illegal_argument_exception", "pipeline with id [p] does not exist"),
        (
            "validation_exception",
            "Validation Failed: 1: this action would add [2] total shards, but this cluster has 9 maximum shards open;",
        ),
    ],
)
def test_what_the_index_is_to_blame_for_ends_the_run(kind: str, reason: str) -> None:
    """Else each record would become a dead letter; a record that quotes such a reason is refused by itself."""
    assert fate_of("index", BulkItem(400, {"type": kind, "reason": reason})) is Fate.FATAL
    quoted = {"type": "mapper_parsing_exception", "reason": f"failed to parse [{reason}]", "caused_by": {}}
    assert (
        fate_of("index", BulkItem(400, {**quoted, "caused_by": {"type": kind, "reason": reason}}))
        is Fate.REFUSED
    )
    quoted["type"] = "illegal_argument_exception"
    assert fate_of("index", BulkItem(400, quoted)) is Fate.REFUSED


def test_a_reason_is_one_line() -> None:
    """With its causes."""
    assert BulkItem(400, ERROR).reason == "mapper_parsing_exception: no; x: not 7"
    assert BulkItem(400, "text").reason == "text"
