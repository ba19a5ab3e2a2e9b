"""DDL strings: the fields of a record type from `name TYPE [NOT NULL], ...`."""

from __future__ import annotations

import datetime as dt
import decimal
import keyword
import re
from typing import Any, Final

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.records.types import Field, type_of_fields

__all__ = ["DdlParser"]


_DDL_SCALARS: Final[dict[str, tuple[Any, pa.DataType]]] = {
    "boolean": (bool, pa.bool_()),
    "tinyint": (int, pa.int8()),
    "smallint": (int, pa.int16()),
    "int": (int, pa.int32()),
    "integer": (int, pa.int32()),
    "bigint": (int, pa.int64()),
    "long": (int, pa.int64()),
    "float": (float, pa.float32()),
    "double": (float, pa.float64()),
    "string": (str, pa.string()),
    "binary": (bytes, pa.binary()),
    "date": (dt.date, pa.date32()),
    "timestamp": (dt.datetime, pa.timestamp("us", tz="UTC")),
}


class DdlParser:
    """A parser of `name TYPE [NOT NULL], ...` with ARRAY<>, MAP<,> and STRUCT<name: TYPE, ...>."""

    _TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*|`[^`]+`|\d+|[<>,:()])")

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens: list[str] = []
        position = 0
        while position < len(ddl.rstrip()):
            match = self._TOKEN.match(ddl, position)
            if match is None:
                raise SchemaError(f"The DDL string {ddl!r} cannot be read at {ddl[position:]!r}.")
            self._tokens.append(match.group(1))
            position = match.end()
        self._next = 0

    def parse(self) -> list[Field]:
        """Return the fields, in order. Raises SchemaError when the text is not DDL."""
        fields = self._fields(end=None)
        if not fields:
            raise SchemaError(
                "The DDL string is empty. Write for example 'sensor_id INT, temperature DOUBLE'."
            )
        return fields

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if token is None or (expected is not None and token.lower() != expected):
            found = "its end" if token is None else repr(token)
            raise SchemaError(
                f"The DDL string {self._ddl!r} has {found} where {expected or 'a name'!r} should be."
            )
        self._next += 1
        return token

    def _fields(self, end: str | None) -> list[Field]:
        fields: list[Field] = []
        while self._peek() is not None and self._peek() != end:
            name = self._take().strip("`")
            if not name.isidentifier() or keyword.iskeyword(name):
                raise SchemaError(
                    f"The DDL string {self._ddl!r} names a field {name!r}; field names must be Python identifiers."
                )
            if self._peek() == ":":
                self._take()
            python_type, arrow_type = self._type()
            nullable = True
            if (self._peek() or "").lower() == "not":
                self._take()
                self._take("null")
                nullable = False
            fields.append(Field(name, python_type, arrow_type, nullable))
            if self._peek() == ",":
                self._take()
            elif self._peek() != end:
                raise SchemaError(f"The DDL string {self._ddl!r} lacks a comma before {self._peek()!r}.")
        return fields

    def _type(self) -> tuple[Any, pa.DataType]:
        word = self._take().lower()
        if word in _DDL_SCALARS:
            return _DDL_SCALARS[word]
        if word == "decimal":
            return self._decimal()
        if word == "array":
            self._take("<")
            item, arrow = self._type()
            self._take(">")
            return list[item], pa.list_(arrow)  # type: ignore[valid-type]  # the type is made at run time
        if word == "map":
            self._take("<")
            key, arrow_key = self._type()
            self._take(",")
            value, arrow_value = self._type()
            self._take(">")
            return dict[key, value], pa.map_(arrow_key, arrow_value)  # type: ignore[valid-type]  # the type is made at run time
        if word == "struct":
            self._take("<")
            fields = self._fields(end=">")
            self._take(">")
            if not fields:
                raise SchemaError(f"The DDL string {self._ddl!r} has a STRUCT without fields.")
            inner = type_of_fields(fields)
            return inner.python_class, pa.struct(list(inner.schema))
        known = ", ".join(sorted({*_DDL_SCALARS, "decimal", "array", "map", "struct"}))
        raise SchemaError(
            f"The DDL string {self._ddl!r} has the unknown type {word!r}. Known types: {known}."
        )

    def _decimal(self) -> tuple[Any, pa.DataType]:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._take()
            precision = self._number()
            if self._peek() == ",":
                self._take()
                scale = self._number()
            self._take(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise SchemaError(
                f"The DDL string {self._ddl!r} has a DECIMAL({precision}, {scale}); it may have 1 to 38 digits in "
                "all, and no more than that after the point."
            )
        return decimal.Decimal, pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdecimal():
            raise SchemaError(f"The DDL string {self._ddl!r} has {token!r} where a number should be.")
        return int(token)
