"""User functions: functions in Python that SQL may call, registered by name with their types."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from penstock.errors import JobDefinitionError, SchemaError
from penstock.expressions.called_functions import SqlFunction
from penstock.expressions.sql_functions import FUNCTIONS
from penstock.records.nested_values import without_none
from penstock.records.schemas import arrow_type_of
from penstock.records.types import Field
from penstock.sql.relations import Expressions
from penstock.sql.sql_dialect import WINDOW_FUNCTIONS
from penstock.state.folded_states import AggregateFunction, AggregatingState
from penstock.windows.record_aggregates import KINDS

__all__ = ["register"]

_TAKEN: Final = {*FUNCTIONS, *KINDS, *(name.lower() for name in WINDOW_FUNCTIONS), "descriptor", "row_number"}


def register(own: Expressions, name: str, given: Any) -> None:
    """Let the expressions of a text call a function of the user. Raises JobDefinitionError if it cannot be one."""
    lower = name.lower()
    if not name.isidentifier() or lower in _TAKEN:
        raise JobDefinitionError(f"A function cannot be named {name!r}; choose another name.")
    if lower in own.functions or lower in own.aggregates:
        raise JobDefinitionError(f"There is a function {name!r} already; choose another name.")
    if isinstance(given, AggregateFunction):
        own.aggregates[lower] = (given, _result_of(lower, given))
    elif isinstance(given, SqlFunction):
        own.functions[lower] = given.bound(lower)
    elif callable(given) and not inspect.isclass(given):
        own.functions[lower] = _read_annotations(lower, given).bound(lower)
    else:
        raise JobDefinitionError(
            f"The function {name!r} is {given!r}. Give a function with annotations, a ps.SqlFunction, or an "
            "instance of an AggregateFunction."
        )


def _read_annotations(name: str, function: Callable[..., Any]) -> SqlFunction:
    """Return a function with the types of its annotations."""
    try:
        hints = typing.get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as e:
        raise JobDefinitionError(f"The annotations of the function {name!r} cannot be read: {e}.") from None
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.KEYWORD_ONLY) for one in parameters):
        raise JobDefinitionError(f"The function {name!r} must have plain parameters, all by position.")
    missing = [one.name for one in parameters if one.name not in hints]
    if missing or "return" not in hints:
        raise JobDefinitionError(
            f"The function {name!r} has no annotation of {missing[0] if missing else 'its result'!s}. Annotate it, or "
            'give ps.SqlFunction(function, takes=("DOUBLE",), returns="DOUBLE").'
        )
    takes = tuple(_type_of(name, hints[one.name]) for one in parameters)
    nullable = any(without_none(hints[one.name])[1] for one in parameters)
    return SqlFunction(function, takes=takes, returns=_type_of(name, hints["return"]), takes_null=nullable)


def _type_of(name: str, hint: Any) -> pa.DataType:
    try:
        return arrow_type_of(without_none(hint)[0])
    except SchemaError as e:
        raise JobDefinitionError(f"The function {name!r}: {e}") from None


def _result_of(name: str, function: AggregateFunction[Any, Any, Any]) -> Field:
    try:
        _ = AggregatingState(function).accumulator_type
        found = typing.get_type_hints(type(function).get_result).get("return", Any)
    except (NameError, TypeError, SchemaError) as e:
        raise JobDefinitionError(f"The aggregate function {name!r}: {e}") from None
    if found is Any or isinstance(found, typing.TypeVar):
        raise JobDefinitionError(f"The aggregate function {name!r}: annotate what get_result returns.")
    kind = without_none(found)[0]
    return Field(name, kind, _type_of(name, kind), nullable=True)
