"""Malformed and hostile statements: a sentence with a position each, and nothing is opened."""

from __future__ import annotations

import random
import sys

import pytest
from audited_opens import opened
from hostile_grammar import statement
from hostile_sql import ATTEMPTS, mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_cases import DECLARATIONS

import penstock as ps
from penstock.errors import ExpressionError


def described(text: str) -> str:
    """Describe a text; return the message if it is refused, which must then have a position and leave the job alone."""
    job = ps.Job("hostile")
    try:
        job.sql(text)
    except ExpressionError as e:
        message = str(e)
        first, *rest = message.split("\n")
        assert "(at " in message, message
        assert rest[-1].strip() == "^", message
        assert "Traceback" not in message
        assert len(message) < 3000
        assert first
        assert not job.graph.nodes
        assert not job.graph.lookups
        return message
    return ""


def outside(found: list[str]) -> list[str]:
    """What was opened besides what Python reads: time zones, and the folders in which it looks for modules."""
    return [one for one in found if "/zoneinfo/" not in one and one not in sys.path]


@pytest.mark.parametrize("text", ATTEMPTS, ids=lambda text: text[:40].encode("unicode_escape").decode())
def test_an_attempt_is_refused_with_its_position(text: str) -> None:
    """Whatever reaches for files, addresses, code or the engine, and what is not supported."""
    with opened() as found:
        assert described(f"{DECLARATIONS}{text}") or described(text)
    assert outside(found) == []


def check_mutations(seed: int, count: int) -> None:
    rng = random.Random(seed)
    refused = 0
    with opened() as found:
        for _ in range(count):
            refused += bool(described(mutated(rng)))
    assert outside(found) == []
    assert refused > count / 2


def test_mutations_are_refused_with_their_position() -> None:
    check_mutations(1, 300)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_mutations_are_refused_with_their_position(seed: int) -> None:
    check_mutations(seed, 2000)


PLACES = "CREATE TABLE places (room STRING, id INT, celsius DOUBLE);\n"


def check_grammar(seed: int, count: int) -> None:
    rng = random.Random(seed)
    refused = 0
    with opened() as found:
        for _ in range(count):
            refused += bool(described(f"{DECLARATIONS}{PLACES}{statement(rng)}"))
    assert outside(found) == []
    assert refused > count * 4 / 5


def test_wrong_statements_are_refused_with_their_position() -> None:
    """Of joins, windows, parameters, views, functions and files; some are ten thousand levels deep."""
    check_grammar(1, 20)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_wrong_statements_are_refused_with_their_position(seed: int) -> None:
    check_grammar(seed, 1000)


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_is_refused_with_its_position(text: str) -> None:
    described(text)
    described(f"{DECLARATIONS}{text}")
