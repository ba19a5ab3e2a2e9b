"""Random expressions equal a row-by-row evaluation in plain Python, with nulls, overflows and failing casts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import ExpressionError
from penstock.expressions.compiler import compile_selection
from penstock.records.schemas import record_type

SCHEMA = record_type("a BIGINT, b INT, x DOUBLE, t STRING, p BOOLEAN")
BITS = {"INT": 32, "BIGINT": 64}


class Fails(Exception):
    """The expression fails for the row."""


@dataclass
class Made:
    """An expression: its text, its type, and a function that gives its value for a row, or raises Fails."""

    text: str
    kind: str
    value: Callable[[dict[str, Any]], Any]


def fit(value: int, kind: str) -> int:
    if not -(2 ** (BITS[kind] - 1)) <= value < 2 ** (BITS[kind] - 1):
        raise Fails
    return value


def remainder(one: int, other: int) -> int:
    found = abs(one) % abs(other)
    return -found if one < 0 else found


def strict(function: Callable[..., Any], *parts: Made) -> Callable[[dict[str, Any]], Any]:
    """Return a function that is null if a part is; all parts are evaluated."""

    def value(row: dict[str, Any]) -> Any:
        values = [part.value(row) for part in parts]
        return None if None in values else function(*values)

    return value


def integers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Made]:
    """Draw sums, products, quotients and remainders of integers, which may overflow."""

    def make(sign: str, left: Made, right: Made) -> Made:
        kind = max(left.kind, right.kind, key=BITS.__getitem__)

        def compute(one: int, other: int) -> int:
            if sign == "%":
                if other == 0:
                    raise Fails
                return remainder(one, other)
            return fit({"+": one + other, "-": one - other, "*": one * other}[sign], kind)

        return Made(f"({left.text} {sign} {right.text})", kind, strict(compute, left, right))

    return st.builds(make, st.sampled_from("+-*%"), inner, inner)


def field(name: str, kind: str) -> st.SearchStrategy[Made]:
    return st.just(Made(name, kind, lambda row: row[name]))


def literal(value: Any, kind: str) -> Made:
    text = f"'{value}'" if isinstance(value, str) else repr(value)
    return Made(text if not isinstance(value, bool) else text.lower(), kind, lambda row: value)


def read(text: str) -> int:
    try:
        return fit(int(text.strip(" ")), "BIGINT")
    except ValueError:
        raise Fails from None


def tried(part: Made, compute: Callable[..., Any]) -> Callable[[dict[str, Any]], Any]:
    def value(row: dict[str, Any]) -> Any:
        try:
            return strict(compute, part)(row)
        except Fails:
            return None

    return value


def conditions(numbers: Any, texts: Any) -> st.SearchStrategy[Made]:
    """Draw comparisons and three-valued logic, in which a decisive term ends the evaluation."""

    def compare(sign: str, left: Made, right: Made) -> Made:
        does = {
            "<": lambda a, b: a < b,
            "<=": lambda a, b: a <= b,
            "=": lambda a, b: a == b,
            "<>": lambda a, b: a != b,
            ">": lambda a, b: a > b,
        }[sign]
        return Made(f"({left.text} {sign} {right.text})", "BOOLEAN", strict(does, left, right))

    def logic(word: str, terms: list[Made]) -> Made:
        decides = word == "or"

        def value(row: dict[str, Any]) -> Any:
            found: Any = not decides
            for term in terms:
                one = term.value(row)
                if one is decides:
                    return decides
                found = None if one is None else found
            return found

        return Made("(" + f" {word} ".join(t.text for t in terms) + ")", "BOOLEAN", value)

    def negate(part: Made) -> Made:
        return Made(f"(not {part.text})", "BOOLEAN", strict(lambda one: not one, part))

    def missing(part: Made) -> Made:
        return Made(f"({part.text} is null)", "BOOLEAN", lambda row: part.value(row) is None)

    def within(part: Made, values: list[int]) -> Made:
        listed = ", ".join(map(str, values))
        return Made(f"({part.text} in ({listed}))", "BOOLEAN", strict(lambda one: one in values, part))

    signs = st.sampled_from(["<", "<=", "=", "<>", ">"])
    least = st.one_of(
        field("p", "BOOLEAN"),
        st.builds(compare, signs, numbers, numbers),
        st.builds(compare, signs, texts, texts),
        st.builds(missing, st.one_of(numbers, texts)),
        st.builds(within, numbers, st.lists(st.integers(-5, 5), min_size=1, max_size=4)),
    )
    return st.recursive(
        least,
        lambda inner: st.one_of(
            st.builds(logic, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
            st.builds(negate, inner),
        ),
        max_leaves=4,
    )


def choice(condition: Made, one: Made, other: Made) -> Made:
    """Draw a CASE, of which only the chosen branch is evaluated."""
    kind = max(one.kind, other.kind, key=lambda name: BITS.get(name, 0))
    return Made(
        f"(case when {condition.text} then {one.text} else {other.text} end)",
        kind,
        lambda row: (one if condition.value(row) is True else other).value(row),
    )


def first_known(one: Made, other: Made) -> Made:
    def value(row: dict[str, Any]) -> Any:
        found = one.value(row)
        return other.value(row) if found is None else found

    kind = max(one.kind, other.kind, key=lambda name: BITS.get(name, 0))
    return Made(f"coalesce({one.text}, {other.text})", kind, value)


def _quotient(one: Made, other: Made) -> Callable[[dict[str, Any]], Any]:
    def divide(x: float, by: int) -> float:
        if by == 0:
            raise Fails
        return x * 0.5 / by

    quotient = Made("", "DOUBLE", strict(divide, Made("x", "DOUBLE", lambda row: row["x"]), other))
    return strict(lambda found, minus: found - minus, quotient, one)


_leaf_numbers = st.one_of(
    field("a", "BIGINT"), field("b", "INT"), st.integers(0, 2**31 - 1).map(lambda n: literal(n, "INT"))
)
_leaf_texts = st.one_of(
    field("t", "STRING"), st.sampled_from(["", "7", "x"]).map(lambda t: literal(t, "STRING"))
)
_numbers = st.recursive(
    st.one_of(
        _leaf_numbers,
        _leaf_texts.map(lambda t: Made(f"cast({t.text} as bigint)", "BIGINT", strict(read, t))),
        _leaf_texts.map(lambda t: Made(f"try_cast({t.text} as bigint)", "BIGINT", tried(t, read))),
        _leaf_texts.map(lambda t: Made(f"length({t.text})", "INT", strict(len, t))),
    ),
    integers,
    max_leaves=4,
)
_texts = st.recursive(
    _leaf_texts,
    lambda inner: st.one_of(
        st.builds(
            lambda a, b: Made(f"({a.text} || {b.text})", "STRING", strict(str.__add__, a, b)), inner, inner
        ),
        inner.map(lambda t: Made(f"upper({t.text})", "STRING", strict(str.upper, t))),
    ),
    max_leaves=3,
)
_conditions = conditions(_numbers, _texts)
_doubles = st.builds(
    lambda one, other: Made(f"(x * 0.5 / {other.text} - {one.text})", "DOUBLE", _quotient(one, other)),
    _leaf_numbers,
    _leaf_numbers,
)
EXPRESSIONS = st.one_of(
    _numbers,
    _texts,
    _conditions,
    _doubles,
    st.builds(choice, _conditions, _numbers, _numbers),
    st.builds(choice, _conditions, _texts, _texts),
    st.builds(first_known, _numbers, _numbers),
)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
            "b": st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
            "x": st.none() | st.floats(-1e6, 1e6),
            "t": st.none() | st.sampled_from(["", "7", " -12 ", "x", "9223372036854775808", "ab"]),
            "p": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=12,
)


@examples(300)
@given(EXPRESSIONS, ROWS)
def test_an_expression_is_what_python_computes_row_by_row(made: Made, rows: list[dict[str, Any]]) -> None:
    """Compared are values, failing rows, and the result for a part of the rows; also after pickling for a
    worker.
    """
    try:
        selection = compile_selection([f"{made.text} as v"], SCHEMA)
    except ExpressionError as e:
        # A constant part fails already when the job is described.
        assert "This has no value" in str(e)  # noqa: PT017  # either outcome is right
        return
    selection = pickle.loads(pickle.dumps(selection))
    columns = [pa.array([row[f.name] for row in rows], f.arrow_type) for f in SCHEMA.fields]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.schema)
    expected: list[Any] = []
    failing = set()
    for number, row in enumerate(rows):
        try:
            expected.append(made.value(row))
        except Fails:
            expected.append(None)
            failing.add(number)
    found, failures = selection.columns(batch, {})
    assert set(failures) == failing
    values = found.column(0).to_pylist()
    assert [None if n in failing else v for n, v in enumerate(values)] == expected
    half = len(rows) // 2
    later, failures = selection.columns(batch.slice(half), {})
    assert {number + half for number in failures} == {number for number in failing if number >= half}
    assert [None if n in failures else v for n, v in enumerate(later.column(0).to_pylist())] == expected[
        half:
    ]
