"""Files: the parameters of URIs for files in a folder or an object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.bindings.secrets import redact
from penstock.bindings.types import BYTES_PER_BATCH, EXPANDED_BYTES, CsvDialect, FilesBinding
from penstock.bindings.uri_parts import UriParts

__all__ = ["files_binding"]


def files_binding(uri: UriParts, form: Any, directory: str, known: Mapping[str, Any]) -> FilesBinding:
    """Return the binding of files of a format in a place. Raises ValueError, which says what is wrong."""
    return FilesBinding(
        stream=uri.stream,
        uri=redact(uri.uri),
        format=form,
        directory=directory,
        max_files_per_batch=known.get("max_files_per_batch"),
        missing=known.get("missing", "fail"),
        max_bytes_per_batch=known.get("max_bytes_per_batch", BYTES_PER_BATCH),
        max_expanded_bytes=known.get("max_expanded_bytes", EXPANDED_BYTES),
        dialect=_dialect(known),
    )


def _dialect(known: Mapping[str, Any]) -> CsvDialect:
    dialect = CsvDialect(
        known.get("delimiter", ","), known.get("quote", '"'), known.get("header", "true") == "true"
    )
    if not dialect.delimiter:
        raise ValueError("delimiter=none separates no values; write one character, or tab")
    if dialect.delimiter == dialect.quote:
        raise ValueError(
            f"delimiter and quote are both {dialect.quote!r}; choose another quote, or quote=none"
        )
    return dialect
