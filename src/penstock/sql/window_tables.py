"""Window tables: TUMBLE, HOP, CUMULATE and SESSION as functions of a table in FROM."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Final

from sqlglot import exp

from penstock.sql.relations import Expressions, Relation, WindowTable
from penstock.windows.assigners import (
    CumulativeWindows,
    GridWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)

__all__ = ["apply_window"]

_USAGE: Final = {
    "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '5' MINUTE [, offset])",
    "HOP": "HOP(TABLE t, DESCRIPTOR(at), slide, size [, offset])",
    "CUMULATE": "CUMULATE(TABLE t, DESCRIPTOR(at), step, size [, offset])",
    "SESSION": "SESSION(TABLE t PARTITION BY key, DESCRIPTOR(at), gap)",
}
_INTERVALS: Final = {"TUMBLE": (1, 2), "HOP": (2, 3), "CUMULATE": (2, 3), "SESSION": (1, 1)}


def apply_window(call: exp.Anonymous, relation: Relation, own: Expressions, keys: Any) -> Relation:
    """Return a relation whose records are in the windows of a function. `keys` are the columns of PARTITION BY."""
    kind = str(call.this)
    given = call.expressions[1:]
    least, most = _INTERVALS[kind]
    if not least + 1 <= len(given) <= most + 1:
        raise own.error(call, f"Write {_USAGE[kind]}; there are {len(given) + 1} arguments here.")
    if keys is not None and kind != "SESSION":
        raise own.error(call, f"{kind} takes no PARTITION BY; GROUP BY names the keys.")
    if relation.window is not None:
        raise own.error(call, "These records are in windows already; group by those first.")
    relation = _set_event_time(given[0], relation, own, kind)
    lengths = [own.duration(one, f"An argument of {kind}") for one in given[1:]]
    with own.errors_at(call):
        assigner = _assigner(kind, lengths)
    names = None if keys is None else tuple(one.name for one in keys)
    shown = ", ".join([kind, *(one.sql() for one in given[1:])])
    return dataclasses.replace(relation, window=WindowTable(kind, assigner, names, own.position(call), shown))


def _assigner(kind: str, lengths: list[dt.timedelta]) -> GridWindows | SessionWindows:
    offset: Any = lengths[-1] if len(lengths) == _INTERVALS[kind][1] else "0s"
    match kind:
        case "TUMBLE":
            return TumblingWindows(lengths[0], offset)
        case "HOP":
            return SlidingWindows(lengths[1], lengths[0], offset)
        case "CUMULATE":
            return CumulativeWindows(lengths[0], lengths[1], offset)
    return SessionWindows(lengths[0])


def _set_event_time(descriptor: exp.Expression, relation: Relation, own: Expressions, kind: str) -> Relation:
    """Return the relation with its event time in the column that DESCRIPTOR names."""
    named = descriptor.expressions if isinstance(descriptor, exp.Anonymous) else []
    if (
        len(named) != 1
        or str(descriptor.this).upper() != "DESCRIPTOR"
        or not isinstance(named[0], exp.Column)
    ):
        raise own.error(
            descriptor, f"The second argument of {kind} is DESCRIPTOR(column), the event time of the table."
        )
    name = named[0].name
    if name not in relation.columns:
        raise own.error(
            descriptor, f"There is no column {name!r}; the columns are {', '.join(relation.columns)}."
        )
    if relation.is_time(name):
        return relation
    with own.errors_at(descriptor):
        return dataclasses.replace(relation, stream=relation.stream.with_event_time(name))
