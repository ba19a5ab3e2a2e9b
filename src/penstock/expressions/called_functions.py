"""Called functions: functions of the user in Python that expressions call, on values or on columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.errors import JobDefinitionError, SchemaError
from penstock.expressions.casts import widen
from penstock.expressions.evaluation import Value
from penstock.expressions.nodes import Call, Node
from penstock.expressions.sql_functions import Function
from penstock.expressions.value_types import common_type, python_type_of, sql_name, type_of_sql
from penstock.records.types import Field

__all__ = ["SqlFunction"]


@dataclass(frozen=True)
class _CalledNode(Call):
    """A call of the user's code, which is not called before records come."""

    @property
    def is_constant(self) -> bool:
        """False."""
        return False


class SqlFunction:
    """A function of the user that SQL may call, with its types.

    >>> import pyarrow.compute as pc
    >>> to_fahrenheit = SqlFunction(
    ...     lambda celsius: pc.add(pc.multiply(celsius, 1.8), 32.0),
    ...     takes=("DOUBLE",), returns="DOUBLE", on_columns=True,
    ... )

    A row for which it raises goes to the dead letters. It must depend on its arguments only, so that a replay gives the
    same result.

    Args:
        function: the function; it gets one value per argument, and returns a value or None.
        takes: the types of the arguments, as in DDL.
        returns: the type of the result.
        on_columns: whether it gets and returns Arrow arrays, of many records at once, instead of values. An error then
            counts for the rows for which it recurs when they are tried alone.
        takes_null: whether it is also called if an argument is null. By default the result then is null.

    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        takes: Sequence[str | pa.DataType],
        returns: str | pa.DataType,
        on_columns: bool = False,
        takes_null: bool = False,
    ) -> None:
        if not callable(function):
            raise JobDefinitionError(f"SqlFunction takes a function, not {function!r}.")
        self.function: Final = function
        self.takes: Final = tuple(_type_of(one) for one in takes)
        self.returns: Final = _type_of(returns)
        self.on_columns: Final = on_columns
        self.takes_null: Final = takes_null
        self._fields: Final = [
            Field("argument", python_type_of(kind), kind, nullable=True) for kind in self.takes
        ]
        self._result: Final = Field("result", python_type_of(self.returns), self.returns, nullable=True)

    def bound(self, name: str) -> Function:
        """Return the function that expressions call by a name."""
        usage = f"{name}({', '.join(sql_name(kind) for kind in self.takes)})"
        return Function(usage, len(self.takes), len(self.takes), self._node)

    def _node(self, *arguments: Node) -> Node:
        nodes = []
        for number, (node, kind) in enumerate(zip(arguments, self.takes, strict=True), 1):
            common = common_type(kind, node.type)
            if common is None or not common.equals(kind):
                raise SchemaError(f"argument {number} must be {sql_name(kind)}, and is {sql_name(node.type)}")
            nodes.append(widen(node, kind))
        return _CalledNode(self.returns, True, self._evaluate, tuple(nodes), may_fail=True)

    def _evaluate(self, *values: Value) -> Value:
        if not values:
            return self._scalar([()])[0]
        lengths = [len(value) for value in values if not isinstance(value, pa.Scalar)]
        columns = [
            pa.repeat(value, lengths[0] if lengths else 1) if isinstance(value, pa.Scalar) else value
            for value in values
        ]
        found = self._on_arrays(columns) if self.on_columns else self._on_values(columns)
        return found if lengths else found[0]

    def _on_arrays(self, columns: list[pa.Array]) -> pa.Array:
        try:
            found = self.function(*columns)
            if isinstance(found, pa.ChunkedArray):
                found = found.combine_chunks()
            made = found if isinstance(found, pa.Array) else pa.array(found)
            made = made.cast(self.returns)
        except Exception as e:  # code of the user may raise anything
            raise _failed(self.function, e) from None
        if len(made) != len(columns[0]):
            raise _failed(self.function, ValueError(f"{len(made)} results for {len(columns[0])} rows"))
        return made

    def _on_values(self, columns: list[pa.Array]) -> pa.Array:
        given = [field.to_python(column) for field, column in zip(self._fields, columns, strict=True)]
        return self._scalar(list(zip(*given, strict=True)))

    def _scalar(self, rows: list[tuple[Any, ...]]) -> pa.Array:
        try:
            results = [None if not self.takes_null and None in row else self.function(*row) for row in rows]
            return self._result.to_arrow(results)
        except Exception as e:  # code of the user may raise anything
            raise _failed(self.function, e) from None


def _failed(function: Any, error: Exception) -> pa.ArrowInvalid:
    """Return the error as that of a row, so that evaluation searches for the row at fault."""
    name = getattr(function, "__name__", type(function).__name__)
    return pa.ArrowInvalid(
        f"{name} raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    )


def _type_of(given: Any) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    try:
        return type_of_sql(given)
    except SchemaError:
        raise JobDefinitionError(
            f"{given!r} is not a type; types are those of schemas, such as DOUBLE."
        ) from None
