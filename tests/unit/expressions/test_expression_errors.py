"""Invalid and hostile expressions are refused with a sentence and a position, and open no file or address."""

from __future__ import annotations

import random
import string

import pyarrow as pa
import pytest
from audited_opens import opened
from expression_rows import SCHEMA, rows
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.errors import ExpressionError
from penstock.expressions.columns import col, lit
from penstock.expressions.compiler import compile_condition, compile_selection

# The text, the message, and the position of the caret.
WRONG = [
    ("temprature > 30", "There is no field 'temprature'; did you mean 'temperature'?", 1),
    ("n > 1 and zzz = 2", "There is no field 'zzz'; the fields are room, ", 11),
    ("room > 3", "STRING and INT cannot be compared with >.", 1),
    ("n > 0 and room + 1 > 2", "STRING and INT cannot be added; CAST one of them.", 11),
    ("n", "This is INT, but a condition is BOOLEAN.", 1),
    ("n > 0 and n", "This is INT, but a condition is BOOLEAN.", 11),
    ("n >", "The expression ends after '>', but is incomplete.", 4),
    ("n > (1 + 2", "The expression ends after '2', but is incomplete.", 11),
    ("n > 1 1", "cannot be read", 7),
    ("room = 'abc", "The text that begins with ' has no end.", 8),
    ("\"room = 'a'", 'The name that begins with " has no end.', 1),
    ("n > 1 /* not", "The comment that begins with /* has no end.", 7),
    ("", "The expression is empty.", 1),
    ("  ", "The expression is empty.", 1),
    ("n > 1; drop table x", "This is more than one expression; remove what comes after the first.", 6),
    ("n > 1, n < 3", "A condition is a single expression; join several with AND or OR.", 8),
    ("n > 1 as x", "A condition has no name", 1),
    ("n from 'file.csv'", "FROM is not part of an expression", 3),
    ("n > 1 where n < 3", "WHERE is not part of an expression", 7),
    ("exists (select 1)", "A subquery is not supported in expressions.", 16),
    ("n in (select n from t)", "IN takes a list of values in parentheses", 1),
    ("sum(n) > 3", "SUM() is over many records; use windows or aggregates of a keyed stream.", 1),
    ("n > 1 and uper(room) = 'A'", "There is no function uper(); did you mean upper()?", 11),
    ("read_csv('/etc/passwd') = 'x'", "There is no function read_csv();", 1),
    ("now() > at", "NOW would have another value in a replay", 1),
    ("at < current_timestamp", "CURRENT_TIMESTAMP would have another value in a replay", 6),
    ("random() < 0.5", "RANDOM would have another value in a replay", 1),
    ("upper() = 'A'", "Write upper(text); it has 0 arguments here.", 1),
    ("upper(n) = 'A'", "The arguments do not fit upper(text): argument 1 must be a text, and is INT.", 1),
    ("substring(room, n) = 'A'", "argument 2 must be a literal", 1),
    ("room rlike '('", "'(' is not a regular expression", 1),
    ("n > " + "9" * 400, "99999999999999999999 is too large for a DOUBLE.", 5),
    ("n > " + "9" * 5000, "99999999999999999999 is too large for a DOUBLE.", 5),
    ("1 / 0 > 2", "This has no value: divide by zero.", 1),
    ("n > 9223372036854775807 + 1", "This has no value: overflow.", 5),
    ("at > '2024-13-01'", "This has no value:", 1),
    ("s.x = 1", "There is no field 'x' in STRUCT<a: INT, b: STRUCT<c: STRING>>; its fields are a, b.", 1),
    ("n.x = 1", "INT has no field 'x'; only a STRUCT has fields.", 1),
    ("tags['a'] = 1", "ARRAY<STRING>[STRING] has no value", 1),
    ("cast(n as colour) = 1", "is not a type", 6),
    ("cast(tags as int) = 1", "ARRAY<STRING> cannot be cast to INT.", 6),
    ("tags = tags", "ARRAY<STRING> and ARRAY<STRING> cannot be compared with =.", 1),
    ("n > ${limit}", "There is no parameter ${limit}; declared are: none.", 5),
    ("n > $limit", "'$' begins a parameter, such as ${limit}: a name in braces.", 5),
    ("n > :limit", "':' has no meaning here; write a parameter as ${name}.", 5),
    ("n > ?", "'?' has no meaning here", 5),
    ("n > @@version", "'@' has no meaning here", 5),
    ("at + interval '1' month > at", "months and years have no fixed length", 15),
    ("case when ok then 1 else 'a' end = 1", "The results of CASE are of different types: INT, STRING.", 11),
    ("n -> n + 1", "JSONEXTRACT is not supported in expressions.", 1),
    ("count(*) > 1", "COUNT() is over many records", 1),
    ("n > 1\nand zzz = 2", "(at line 2, column 5)", 5),
]


@pytest.mark.parametrize(("text", "sentence", "column"), WRONG, ids=[case[0] for case in WRONG])
def test_an_error_says_what_is_wrong_and_where(text: str, sentence: str, column: int) -> None:
    """The message has the line of the text, and a caret below the place."""
    with pytest.raises(ExpressionError) as caught:
        compile_condition(text, SCHEMA)
    message = str(caught.value)
    assert sentence in message
    caret = message.split("\n")[-1]
    assert caret.index("^") - 1 == column, message


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (["n + 1"], "Name this field: write AS and a name after the expression."),
        (["n", "b AS n"], "There is no field 'b'"),
        (["n", "sure AS n"], "There are two fields 'n'; name one with AS."),
        (["null AS x"], "NULL has no type of its own"),
        (["at - at AS x"], "A field cannot be an INTERVAL"),
        (['n AS "two words"'], "'two words' is not a name of a field"),
        (["n AS __n"], "'__n' is not a name of a field"),
        ([], "select needs at least one expression"),
        ([7], "7 is not an expression."),
        (["count(*) AS c"], "COUNT() is over many records"),
    ],
)
def test_a_wrong_selection_is_refused(fields: list[str], sentence: str) -> None:
    """Errors concern names and types of the new records."""
    with pytest.raises(ExpressionError) as caught:
        compile_selection(fields, SCHEMA)
    assert sentence in str(caught.value)


def test_columns_refuse_what_they_cannot_be() -> None:
    """Refused are a truth value before there are records, and values without a form in SQL."""
    with pytest.raises(ExpressionError, match="has no truth value before records come"):
        bool(col("n") > 1)
    with pytest.raises(ExpressionError, match="cannot stand in an expression"):
        lit(object())
    with pytest.raises(ExpressionError, match="cannot stand in an expression"):
        lit(float("nan"))


def test_what_is_nested_too_deeply_or_too_long_is_refused() -> None:
    """Neither the parser nor a worker overflows its stack."""
    for text in (
        "(" * 5000 + "n" + ")" * 5000,
        "not " * 4000 + "ok",
        "n" + " + n" * 3000,
        "-" * 9000 + "n > 1",
    ):
        with pytest.raises(ExpressionError, match=r"\(at (line|column)"):
            compile_condition(text, SCHEMA)
    with pytest.raises(ExpressionError, match="longer than 20000 characters"):
        compile_condition("n > 1 and " * 3000 + "ok", SCHEMA)
    many = compile_condition(" or ".join(f"n = {i}" for i in range(1000)), SCHEMA)
    assert many.rows(rows(), {})[0].tolist() == [True, False, False]


WORDS = r"""
    n room temperature d at day tags m s ok f raw big sure a.b s.b.c `n` "n" ${limit} ${x} $ { } ? : @ # \
    + - * / % = <> < <= > >= == != <=> || | & ^ ~ ! -> :: . , ; ( ) [ ] true false distinct all any null
    and or not in is null between like ilike rlike case when then else end cast try_cast as interval exists
    select from where join union drop delete insert attach copy install load pragma set create with limit
    upper read_csv read_text getenv pg_read_file sum count over partition order by group now random
    int string decimal(10,2) array<int> 'a' 'it''s' '/etc/passwd' 1 0 1.5 1e5 1e999 99999999999999999999
    'unclosed "unclosed /* -- */ {{ }} {% %} interval '5' minute é 💧
"""
_WORDS = [*WORDS.split(), "\n", "\t", "\x00"]
_VALID = [
    "temperature > 30 and room in ('a', 'b')",
    "case when n > 1 then upper(room) else cast(n as string) end = 'A'",
    "at + interval '5' minute > timestamp '2024-01-01 00:00:00' or d * 1.5 >= ${limit}",
    "regexp_like(room, '^[a-z]+$') and s.b.c is not null and tags[0] like 'x%'",
]


def hostile(seed: int) -> str:
    """Draw a text of SQL words in any order, or a valid one with a few characters changed."""
    draw = random.Random(seed)
    if draw.random() < 0.6:
        return draw.choice([" ", " ", ""]).join(draw.choices(_WORDS, k=draw.randint(1, 14)))
    text = list(draw.choice(_VALID))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text))
        text[at : at + draw.randint(0, 3)] = draw.choices(string.printable + "é\x00", k=draw.randint(0, 3))
    return "".join(text)


def check_refused_or_right(text: str) -> None:
    try:
        condition = compile_condition(text, SCHEMA, {"limit": pa.float64()})
    except ExpressionError as e:
        message = str(e)
        first, *shown = message.split("\n")
        assert "(at column " in message or "(at line " in message, (text, message)
        assert shown[-1].strip() == "^", (text, message)
        assert first[0].isupper() or first[0] in "'\"<`" or not first[0].isalpha(), message
        assert "Traceback" not in message
        assert "sqlglot" not in message
        return
    mask, failures = condition.rows(rows(), {"limit": pa.scalar(1.0)})
    assert len(mask) == 3
    assert all(isinstance(reason, str) for reason in failures.values())


@examples(60)
@given(st.integers(0, 10**9))
def test_a_hostile_text_is_refused_with_its_position_and_opens_nothing(seed: int) -> None:
    """Fifty texts each time: an invalid one gives one sentence, and no file or address is opened."""
    with opened() as heard:
        for number in range(50):
            check_refused_or_right(hostile(seed * 50 + number))
    assert heard == []


@given(st.text(max_size=60))
def test_any_text_is_refused_or_right(text: str) -> None:
    """Texts have any characters."""
    check_refused_or_right(text)
