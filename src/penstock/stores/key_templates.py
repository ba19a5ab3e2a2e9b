"""Key templates: the keys of records, made of text and of fields in braces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BindingError
from penstock.records.types import RecordType

__all__ = ["KeyTemplate"]

_FIELD: Final = re.compile(r"\{([^{}]+)\}")


class KeyTemplate:
    """A template such as `sensor:{sensor}`, for records of a type.

    Raises BindingError when a field does not exist, or is neither text nor an integer.
    """

    def __init__(self, stream: str, template: str, record_type: RecordType) -> None:
        self._parts: Final = _FIELD.split(template)
        self.fields: Final[Sequence[str]] = self._parts[1::2]
        for name in self.fields:
            kind = record_type.field(name).arrow_type if name in record_type.field_names else None
            if kind is None or not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
                raise BindingError(
                    f"Sink {stream!r}: the key {template!r} has {{{name}}}, which must be a field of text or an "
                    f"integer. The records have {', '.join(record_type.field_names)}."
                )

    def keys(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the key of each record as text; null where a field of it is null."""
        if not self.fields:
            return pa.array([self._parts[0]] * len(batch))
        parts = [
            pc.cast(batch.column(part), pa.string()) if place % 2 else pa.scalar(part)
            for place, part in enumerate(self._parts)
        ]
        return pc.binary_join_element_wise(*parts, "")
