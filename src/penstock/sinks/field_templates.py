"""Field templates: names of places with `{field}` in them, such as the topic or the routing key of a message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BindingError
from penstock.records.types import RecordType

__all__ = ["check_template", "fill_template"]

_FIELD: Final = re.compile(r"\{([^{}]*)\}")


def check_template(stream: str, what: str, template: str, record_type: RecordType) -> None:
    """Raise BindingError unless each `{field}` of a template is a field of text or an integer."""
    if re.search(r"[{}]", _FIELD.sub("", template)):
        raise BindingError(
            f"Sink {stream!r}: the {what} {template!r} must have the name of a field in each pair of braces."
        )
    for name in _FIELD.findall(template):
        kind = record_type.field(name).arrow_type if name in record_type.field_names else None
        if kind is None or not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise BindingError(
                f"Sink {stream!r}: the {what} {template!r} has {{{name}}}, which must be a field of text or an "
                f"integer. The records have {', '.join(record_type.field_names)}."
            )


def fill_template(template: str, batch: pa.RecordBatch, unfit: re.Pattern[str]) -> list[str | None]:
    """Return the name for each record; None if a value is null, empty, or has something `unfit`."""
    parts = _FIELD.split(template)
    if len(parts) == 1:
        return [template] * len(batch)
    columns = [
        [part] * len(batch) if place % 2 == 0 else batch.column(part).to_pylist()
        for place, part in enumerate(parts)
    ]
    return [_filled(values, unfit) for values in zip(*columns, strict=True)]


def _filled(values: Sequence[Any], unfit: re.Pattern[str]) -> str | None:
    fields = values[1::2]
    if any(value is None or value == "" or unfit.search(str(value)) for value in fields):
        return None
    return "".join(map(str, values))
