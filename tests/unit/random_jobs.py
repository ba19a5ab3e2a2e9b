"""Random jobs with states of all kinds."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st
from stored_jobs import JobWith, Keep, StepWith, first_of_two

import penstock as ps
from penstock.control.commands import Command, Target
from penstock.control.register import Register
from penstock.engine.slot import Header
from penstock.state.shared import BroadcastState, Setting

__all__ = ["drawn_jobs"]

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "b l u e"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2**40


@dataclass
class Inner:
    number: int
    note: str | None = None


@dataclass
class Record:
    name: str
    inner: Inner
    perhaps: Inner | None = None
    several: list[Inner] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    amount: decimal.Decimal | None = None
    raw: bytes | None = None
    colour: Colour | None = None
    since: dt.datetime | None = None


@dataclass(frozen=True)
class Pair:
    left: int
    right: str


@dataclass(frozen=True)
class Numbers:
    whole: int
    real: float
    day: dt.date | None = None


texts = st.one_of(
    st.text(max_size=5),
    st.sampled_from(
        ["", " ", '"', ",", "\r\n", "\\N", "\ufeff", "null", "NaN", "\x00", "ß", "👩‍🚀", "\u0301"]
    ),
)
whole = st.integers(-(2**63), 2**63 - 1)
real = st.floats(allow_nan=True).map(lambda v: float("nan") if v != v else v)
days = st.dates()
moments = st.integers(-(2 * 10**16), 2 * 10**17).map(
    lambda us: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
)
amounts = st.integers(-(10**38) + 1, 10**38 - 1).map(
    lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -18))
)
inners = st.builds(Inner, whole, st.none() | texts)
records = st.builds(
    Record,
    texts,
    inners,
    st.none() | inners,
    st.lists(inners, max_size=2),
    st.dictionaries(texts, whole, max_size=2),
    st.none() | amounts,
    st.none() | st.binary(max_size=4),
    st.none() | st.sampled_from(Colour),
    st.none() | moments,
)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: whole,
    float: real,
    str: texts,
    bytes: st.binary(max_size=5),
    dt.datetime: moments,
    dt.date: days,
    decimal.Decimal: amounts,
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Literal["on", "off"]: st.sampled_from(["on", "off"]),
    list[int]: st.lists(whole, max_size=3),
    dict[str, float]: st.dictionaries(texts, real, max_size=2),
    Numbers: st.builds(Numbers, whole, real, st.none() | days),
    Record: records,
}
HASHED: list[Any] = [int, str, bytes, dt.date, decimal.Decimal, Pair]
VALUES_OF_HASHED = {**VALUES, Pair: st.builds(Pair, whole, texts)}
KEYS: dict[tuple[Any, ...], st.SearchStrategy[Any]] = {
    (int,): whole,
    (str,): texts,
    (bytes,): st.binary(max_size=4),
    (dt.date,): days,
    (dt.datetime,): moments,
    (int, str): st.tuples(whole, texts),
    (str, dt.date, bytes): st.tuples(texts, days, st.binary(max_size=3)),
}


@st.composite
def declared(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[Any]]:
    """A keyed state, and what it may be set to."""
    kind = draw(st.sampled_from(["value", "value", "list", "map", "reducing", "aggregating", "temporal"]))
    type_of = draw(st.sampled_from(list(VALUES)))
    values = VALUES[type_of]
    if kind == "value":
        return ps.ValueState(type_of), values
    if kind == "list":
        return ps.ListState(type_of), st.lists(values, max_size=3)
    if kind == "map":
        key_type = draw(st.sampled_from(HASHED))
        return ps.MapState(key_type, type_of), st.dictionaries(VALUES_OF_HASHED[key_type], values, max_size=3)
    if kind == "reducing":
        return ps.ReducingState(type_of, first_of_two), values
    if kind == "aggregating":
        return ps.AggregatingState(Keep(), accumulator=type_of), values
    return ps.TemporalState(type_of), st.dictionaries(
        st.none() | moments, st.none() | values, min_size=1, max_size=3
    )


@st.composite
def declared_shared(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[Any]]:
    """A setting or a broadcast state, and what it may be set to."""
    type_of = draw(st.sampled_from(list(VALUES)))
    values = VALUES[type_of]
    if draw(st.booleans()):
        return Setting(type_of), st.dictionaries(st.none() | moments, st.none() | values, max_size=3)
    key_type = draw(st.sampled_from(HASHED))
    return BroadcastState(key_type, type_of), st.dictionaries(VALUES_OF_HASHED[key_type], values, max_size=3)


@st.composite
def headers(draw: st.DrawFn) -> Header | None:
    """What slots keep about commands: the same in all of them, but for the versions of single keys."""
    if draw(st.booleans()):
        return None
    register = Register()
    for number in range(draw(st.integers(0, 3))):
        target = Target(step="s", all=True)
        register.admit(Command(id=f"id-{number}", kind="set", target=target, version=number), NOW)
    return Header(
        register=register.dump() if draw(st.booleans()) else None,
        standing=draw(st.binary(max_size=5)),
        paused=draw(st.booleans()),
        cache_generation=draw(st.integers(0, 3)),
    )


@st.composite
def drawn_steps(draw: st.DrawFn, key_groups: int) -> StepWith:
    keyed = draw(st.lists(declared(), max_size=3))
    shared = draw(st.lists(declared_shared(), max_size=2))
    key_type = draw(st.sampled_from(list(KEYS)))
    names = [f"state_{number}" for number in range(len(keyed))]
    row = st.fixed_dictionaries(
        {name: st.none() | values for name, (_, values) in zip(names, keyed, strict=True)}
    )
    batch = st.dictionaries(KEYS[key_type], row, max_size=5)
    first = draw(batch)
    second = {key: draw(row) for key in first if draw(st.booleans())} | draw(batch)
    of_all = {f"shared {number}": found for number, found in enumerate(shared)}
    held = st.tuples(st.integers(0, key_groups - 1), st.binary(max_size=3))
    return StepWith(
        {name: state for name, (state, _) in zip(names, keyed, strict=True)}
        | {name: state for name, (state, _) in of_all.items()},
        key_type,
        [first, second] if keyed else [{}, {}],
        {name: draw(values) for name, (_, values) in of_all.items()},
        draw(headers()),
        draw(st.lists(held, max_size=2)),
    )


@st.composite
def drawn_jobs(draw: st.DrawFn) -> JobWith:
    key_groups = draw(st.integers(1, 9))
    return JobWith(draw(st.lists(drawn_steps(key_groups), min_size=1, max_size=2)), key_groups)
