"""Field defaults: the value of a field of a record when the schema of a message lacks the field."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec

from penstock.records.types import RecordType

__all__ = ["NO_DEFAULT", "default_of"]

NO_DEFAULT: Final = object()


def default_of(record_type: RecordType, name: str) -> Any:
    """Return what a field has where a schema does not have it: the default of its class, else None if it may be null.

    Returns NO_DEFAULT if it has neither.
    """
    kind = record_type.python_class
    if dataclasses.is_dataclass(kind):
        missing: Any = dataclasses.MISSING
        found: dict[str, Any] = {field.name: field for field in dataclasses.fields(kind)}
    else:
        missing = msgspec.NODEFAULT
        found = {field.name: field for field in msgspec.structs.fields(kind)}
    if name in found and found[name].default is not missing:
        return found[name].default
    if name in found and found[name].default_factory is not missing:
        return found[name].default_factory()
    return None if record_type.field(name).nullable else NO_DEFAULT
