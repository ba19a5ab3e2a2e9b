"""Relations: the sources that FROM names, as streams, and the parts of a query as expressions on their fields."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from penstock.errors import ExpressionError, JobDefinitionError, SchemaError
from penstock.expressions.binder import Binder
from penstock.expressions.nodes import Constant
from penstock.expressions.sql_text import SqlPart, SqlText, parts_of
from penstock.operators.event_times import EVENT_TIME
from penstock.records.schemas import record_type
from penstock.records.types import Field
from penstock.state.shared import Setting
from penstock.streams.lookup_table import LookupTable
from penstock.streams.stream import DataStream
from penstock.tables.changes import CHANGE
from penstock.windows.assigners import GridWindows, SessionWindows

__all__ = ["Expressions", "LookedUp", "Relation", "WindowTable", "column_named", "unqualify"]

_NOTHING: Final = record_type("nothing BOOLEAN")


@dataclass(frozen=True)
class WindowTable:
    """A function of a table that assigns windows: its name, the keys of sessions, and its arguments as written."""

    kind: str
    assigner: GridWindows | SessionWindows
    keys: tuple[str, ...] | None
    at: int
    shown: str = ""


@dataclass(frozen=True)
class Relation:
    """A stream in a query.

    `alias` is the name that columns may be qualified with. `times` are the fields that hold the event time of records
    although that travels beside them. `window` are the windows that records were put into and not grouped by yet.
    `ranked` are rows with a number that is not limited yet. `sides` has, after a join, the columns of both sides by the
    names of the sides and columns.
    """

    stream: DataStream[Any]
    alias: str
    times: frozenset[str] = frozenset()
    window: WindowTable | None = None
    ranked: Any = None
    sides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns, without the kind of a change."""
        return tuple(one for one in self.stream.record_type.fields if one.name != CHANGE)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self.fields)

    def is_time(self, name: str) -> bool:
        """Return whether a column holds the event time."""
        time = self.stream.origin.time
        return name == time or (time == EVENT_TIME and name in self.times)


@dataclass(frozen=True)
class LookedUp:
    """The right side of a join that is a table outside the job, under the name that columns may be qualified with."""

    table: LookupTable
    alias: str
    window: None = None
    ranked: None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.table.record_type.field_names

    def is_time(self, name: str) -> bool:  # noqa: ARG002  # its rows are those of now
        """Return whether a column holds the event time: none does."""
        return False


@dataclass
class Expressions:
    """The expressions of one text: their errors, parameters and functions, and the names of nodes made from them."""

    text: SqlText
    settings: dict[str, Setting[Any]] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    aggregates: dict[str, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def error(self, part: exp.Expression | int, reason: str) -> ExpressionError:
        """Return an error with the position of a part, or a position itself."""
        return self.text.error(part if isinstance(part, int) else self.position(part), reason)

    def position(self, part: exp.Expression) -> int:
        """Return where a part begins; if it has no position, where the part that contains it begins."""
        one: Any = part
        at = -1
        while at < 0 and one is not None:
            at = self.text.position(one, otherwise=-1)
            one = one.parent
        return max(at, 0)

    @contextlib.contextmanager
    def errors_at(self, part: exp.Expression | int) -> Iterator[None]:
        """Give the errors of streams the position of the part that caused them."""
        try:
            yield
        except ExpressionError:
            raise
        except (JobDefinitionError, SchemaError) as e:
            raise self.error(part, str(e)) from None

    def unique(self, name: str) -> str:
        """Return a unique name within the text: the name itself, or with a number."""
        found, number = name, 1
        while found in self.names:
            number += 1
            found = f"{name}-{number}"
        self.names.add(found)
        return found

    def where(self, stream: Any, condition: exp.Expression, name: str) -> Any:
        """Return the records of a stream for which a condition is true."""
        with self.errors_at(condition):
            return stream.where(
                self.part(condition), settings=self.used_settings(condition), name=self.unique(name)
            )

    def select(self, stream: Any, fields: Sequence[tuple[str, exp.Expression]], name: str) -> Any:
        """Return the records that expressions make, each with its name."""
        parts = [_named(part, made) for made, part in fields]
        used: dict[str, Setting[Any]] = {}
        for part in parts:
            used |= self.used_settings(part)
        with self.errors_at(fields[0][1]):
            return stream.select(*map(self.part, parts), settings=used or None, name=self.unique(name))

    def part(self, part: exp.Expression) -> SqlPart:
        """Return a part as an expression of a stream."""
        return SqlPart(self.text, part, self.functions)

    def used_settings(self, part: exp.Expression) -> dict[str, Setting[Any]]:
        """Return the settings of the parameters in a part. Raises ExpressionError if one was not set before."""
        found = {}
        for one in parts_of(part):
            if isinstance(one, exp.Placeholder):
                if one.name not in self.settings:
                    known = ", ".join(f"${{{name}}}" for name in self.settings) or "none"
                    at = re.search(rf"\$\{{\s*{re.escape(one.name)}\s*\}}", self.text.text)
                    raise self.error(
                        self.position(part) if at is None else at.start(),
                        f"There is no parameter ${{{one.name}}}; set are: {known}. Write SET '{one.name}' = 1.0; "
                        "before.",
                    )
                found[one.name] = self.settings[one.name]
        return dict(sorted(found.items()))

    def constant(self, part: exp.Expression) -> Constant:
        """Return the value of an expression without columns."""
        node = Binder(self.text, _NOTHING, {}, {}).bind(part)
        if not isinstance(node, Constant):
            raise self.error(part, "This must be a literal.")
        return node

    def duration(self, part: exp.Expression, what: str) -> dt.timedelta:
        """Return the value of an interval, of whole milliseconds."""
        value = self.constant(part).value.as_py() if isinstance(part, exp.Interval) else None
        if not isinstance(value, dt.timedelta):
            raise self.error(part, f"{what} is an interval, such as INTERVAL '5' MINUTE.")
        if value % dt.timedelta(milliseconds=1):
            raise self.error(part, f"{what} must be whole milliseconds.")
        return value


def column_named(name: str, like: exp.Expression | None = None) -> exp.Column:
    """Return a column of that name, at the position of another expression."""
    identifier = exp.Identifier(this=name, quoted=True)
    if like is not None:
        start = min((one.meta["start"] for one in parts_of(like) if "start" in one.meta), default=None)
        if start is not None:
            identifier.meta.update(start=start, end=start, line=0, col=0)
    return exp.Column(this=identifier)


def unqualify(part: exp.Expression, relation: Relation, own: Expressions) -> exp.Expression:
    """Return an expression whose columns are named without the relation: `r.room` is `room`."""

    def plain(one: exp.Expression) -> exp.Expression:
        if not isinstance(one, exp.Column):
            return one
        if relation.sides:
            return _of_side(one, relation, own)
        if not one.table:
            return one
        names = list(one.parts)
        if names[0].name != relation.alias:
            if names[0].name in relation.columns:
                # A field of a STRUCT.
                return one
            raise own.error(
                one, f"There is no table {names[0].name!r} here; the columns are of {relation.alias!r}."
            )
        rest: list[Any] = names[1:]
        return exp.Column(
            **dict(zip(("catalog", "db", "table", "this"), [None] * (4 - len(rest)) + rest, strict=True))
        )

    for one in parts_of(part):
        if isinstance(one, exp.Subquery | exp.Select | exp.Exists):
            raise own.error(one, "A query may stand in FROM, not in an expression.")
    return part.copy().transform(plain)


def _of_side(part: exp.Column, relation: Relation, own: Expressions) -> exp.Expression:
    """Return a column of a join under the name that it has in the result."""
    names = [one.name for one in part.parts]
    if names[0] in relation.sides and len(names) == 2:
        if names[1] not in relation.sides[names[0]]:
            known = ", ".join(relation.sides[names[0]])
            raise own.error(part, f"{names[0]!r} has no column {names[1]!r}; its columns are {known}.")
        return column_named(relation.sides[names[0]][names[1]], part)
    found = [side[names[0]] for side in relation.sides.values() if names[0] in side]
    if len(found) > 1:
        raise own.error(
            part, f"Both sides have a column {names[0]!r}; write {' or '.join(relation.sides)} before it."
        )
    if len(names) > 1 or not found:
        return part
    return column_named(found[0], part)


def _named(part: exp.Expression, name: str) -> exp.Expression:
    if isinstance(part, exp.Column) and part.name == name and not part.table:
        return part
    return exp.Alias(this=part, alias=exp.Identifier(this=name))
