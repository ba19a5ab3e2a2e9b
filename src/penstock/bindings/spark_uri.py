"""URIs of Spark's formats: `spark:FORMAT?OPTION=VALUE`; the option `path` is the place that it loads or writes."""

from __future__ import annotations

import re

from penstock.bindings.secrets import check_reference, redact
from penstock.bindings.types import SparkBinding
from penstock.bindings.uri_parts import UriParts

__all__ = ["parse_spark"]

_BATCH_FIELD = "batch_field"


def parse_spark(uri: UriParts) -> SparkBinding:
    """Return the format that a URI names, with its options. Raises ValueError, which says what is wrong."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", uri.rest):
        raise ValueError("the format is missing: spark:FORMAT, such as spark:orc?path=/data/readings")
    options = dict(uri.query)
    for name, value in options.items():
        check_reference(name, value)
    batch_field = options.pop(_BATCH_FIELD, None) if uri.role == "sink" else None
    if batch_field is not None and not batch_field.isidentifier():
        raise ValueError(f"{_BATCH_FIELD}={batch_field!r} must name one field")
    return SparkBinding(uri.stream, redact(uri.uri), uri.rest, options, batch_field)
