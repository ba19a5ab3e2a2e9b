"""Joined records: the names of the fields of two sides in an expression, `left.amount` or only `amount`."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from penstock.records.types import Field, RecordType

__all__ = ["JoinedRecords", "Side", "resolve_names"]


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a join: its alias, the type of its records, and whether there may be none."""

    alias: str
    records: RecordType
    nullable: bool = False


class JoinedRecords(RecordType):
    """The fields of both sides, each named ALIAS.FIELD, and further fields without an alias.

    It is only for expressions: there are no Python objects of it.
    """

    def __init__(self, sides: tuple[Side, ...], more: tuple[Field, ...] = ()) -> None:
        self.sides: Final = sides
        self._more: Final = more
        fields = [
            dataclasses.replace(
                field, name=f"{side.alias}.{field.name}", nullable=field.nullable or side.nullable
            )
            for side in sides
            for field in side.records.fields
        ]
        rebuild: tuple[Any, Any] = (_join_again, (sides, more))
        super().__init__("Joined", [*fields, *more], object, rebuild)

    def resolve(self, names: list[str]) -> tuple[list[str], str]:
        """Return the names of an expression with that of the field first, and why they are ambiguous, else ""."""
        aliases = [side.alias for side in self.sides]
        if len(names) > 1 and names[0] in aliases:
            return [f"{names[0]}.{names[1]}", *names[2:]], ""
        if names[0] in self.field_names:
            return names, ""
        found = [f"{side.alias}.{names[0]}" for side in self.sides if names[0] in side.records.field_names]
        if len(found) > 1:
            return names, f"Both sides have the field {names[0]!r}; write {' or '.join(found)}."
        return ([found[0], *names[1:]] if found else names), ""

    def fields_of(self, alias: str | None) -> list[tuple[str, Field]]:
        """Return the fields of one side, or of both and the further ones for None, with their names in a result."""
        found = [
            (field.name, self.field(f"{side.alias}.{field.name}"))
            for side in self.sides
            if alias in (None, side.alias)
            for field in side.records.fields
        ]
        return found if alias is not None else [*found, *((field.name, field) for field in self._more)]


def _join_again(given: tuple[tuple[Side, ...], tuple[Field, ...]]) -> JoinedRecords:
    return JoinedRecords(*given)


def resolve_names(records: RecordType, names: list[str]) -> tuple[list[str], str]:
    """Return the names of an expression with that of the field first, and why they are ambiguous, else ""."""
    return records.resolve(names) if isinstance(records, JoinedRecords) else (names, "")
