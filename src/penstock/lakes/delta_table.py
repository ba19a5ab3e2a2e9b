"""Delta table: opened or created at a start, and checked to take the records of a sink."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import DeltaBinding
from penstock.errors import BindingError, ExternalSystemError, PlaceMissingError
from penstock.lakes.delta_files import check_reach, delta_files, storage_options
from penstock.lakes.staged_files import is_partition_type

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "as_external",
    "check_replaceable",
    "check_table",
    "ensure_table",
    "open_existing_table",
    "open_table",
    "require_library",
]

# These ask nothing of a writer that only adds files, or their rules are in the table's settings and columns.
_HARMLESS: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_COLUMN_RULES: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.")


def require_library(stream: str) -> None:
    """Raise BindingError with the command when the library is missing."""
    try:
        import deltalake  # noqa: F401  # only whether it is there
    except ImportError:
        raise BindingError(
            f"Stream {stream!r}: Delta Lake needs deltalake, which is not installed. Install it: "
            "pip install 'penstock[delta]'."
        ) from None


@contextmanager
def as_external(binding: DeltaBinding) -> Iterator[None]:
    """Turn errors of the library and the file system into ExternalSystemError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as e:
        # The library repeats its request, which must not show a key.
        secrets = resolve_settings(binding.stream, binding.client).values()
        shown = functools.reduce(lambda text, secret: text.replace(secret, "***"), secrets, str(e))
        if "<Code>NoSuchBucket</Code>" in shown:
            raise PlaceMissingError(
                f"Sink {binding.stream!r}: the bucket {binding.bucket!r} of {binding.directory} does not exist. Create "
                "it, or correct the URI."
            ) from None
        # The library writes its reasons as a coloured tree.
        reason = " ".join(_COLOUR.sub("", shown).replace("\u21b3", "").split())
        raise ExternalSystemError(
            f"Sink {binding.stream!r}: the Delta table {binding.directory} cannot be read or written ({reason}). "
            "Start the job again when it can."
        ) from None


def open_table(binding: DeltaBinding) -> DeltaTable | None:
    """Open the table of a binding; None if there is none. Changes nothing."""
    require_library(binding.stream)
    from deltalake import DeltaTable

    check_reach(binding)
    with as_external(binding):
        options = storage_options(binding)
        if not DeltaTable.is_deltatable(binding.directory, options):
            return None
        return DeltaTable(binding.directory, storage_options=options)


def open_existing_table(binding: DeltaBinding) -> DeltaTable:
    """Open the table of a binding. Raises PlaceMissingError when there is none."""
    table = open_table(binding)
    if table is None:
        raise PlaceMissingError(
            f"Sink {binding.stream!r}: there is no Delta table in {binding.directory}. Create it, or leave "
            "create_table=false out of the URI."
        )
    return table


def ensure_table(binding: DeltaBinding, schema: pa.Schema) -> DeltaTable:
    """Open the table of a binding and check that it takes records, or create it.

    Raises PlaceMissingError when it does not exist and is not to be created, and BindingError when it cannot be used.
    """
    table = open_table(binding) if binding.create_table else open_existing_table(binding)
    try:
        delta_files(binding).check()
        if table is None:
            table = _created(binding, schema)
    except OSError as e:
        raise BindingError(
            f"Sink {binding.stream!r}: {binding.directory} cannot be written ({e.strerror or e}). Make it writable, "
            f"or bind the sink to another folder with -D {binding.stream}=delta:DIR."
        ) from e
    check_table(table, binding, schema)
    return table


def _created(binding: DeltaBinding, schema: pa.Schema) -> DeltaTable:
    from deltalake import DeltaTable

    _check_partition_fields(binding, schema, binding.partition_by)
    with as_external(binding):
        return DeltaTable.create(
            binding.directory,
            schema=schema,
            partition_by=list(binding.partition_by),
            mode="ignore",
            storage_options=storage_options(binding),
        )


def check_table(table: DeltaTable, binding: DeltaBinding, schema: pa.Schema) -> None:
    """Raise BindingError, with the remedy, unless a table takes records of a schema."""
    _check_rules(table, binding)
    there = _fields(table.schema())
    wanted = _fields(_delta_schema(binding, schema))
    missing = [name for name in wanted if name not in there]
    place = f"Sink {binding.stream!r}: the Delta table {binding.directory}"
    if missing:
        fields = ", ".join(f'Field("{name}", {_type_call(wanted[name]["type"])})' for name in missing)
        raise BindingError(
            f"{place} has no column {', '.join(missing)}; it has {', '.join(there)}. Leave the fields out of the "
            f'records, or run: DeltaTable("{binding.directory}").alter.add_columns([{fields}])'
        )
    for name, field in wanted.items():
        if field["type"] != there[name]["type"]:
            raise BindingError(
                f"{place} has {name} as {_shown(there[name]['type'])}, but the records have it as "
                f"{_shown(field['type'])}. Cast the field in the job, or bind the sink to another table."
            )
        if field["nullable"] and not there[name]["nullable"]:
            raise BindingError(
                f"{place} needs a value for {name}, which may be missing in the records. Declare the field as NOT "
                f'NULL, or run: DeltaTable("{binding.directory}").alter.drop_column_not_null("{name}")'
            )
    needed = [name for name, field in there.items() if not field["nullable"] and name not in wanted]
    if needed:
        raise BindingError(f"{place} needs a value for {', '.join(needed)}, which the records do not have.")
    parts = tuple(table.metadata().partition_columns)
    if binding.partition_by and binding.partition_by != parts:
        has = f"is partitioned by {','.join(parts)}" if parts else "is not partitioned"
        raise BindingError(
            f"{place} {has}, and not by {','.join(binding.partition_by)}. Leave partition_by out, which takes the "
            "table as it is, or bind the sink to another folder."
        )
    _check_partition_fields(binding, schema, parts)


def check_replaceable(table: DeltaTable, binding: DeltaBinding) -> None:
    """Raise BindingError when rows of a table must not be replaced or deleted."""
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        raise BindingError(
            f"Sink {binding.stream!r}: the Delta table {binding.directory} only takes rows that are added "
            "(delta.appendOnly), and the sink replaces rows. Bind it to another table, or add the changes as records "
            '(sink_to(..., changes="records")).'
        )


def _check_partition_fields(binding: DeltaBinding, schema: pa.Schema, parts: tuple[str, ...]) -> None:
    unknown = [name for name in parts if name not in schema.names]
    if unknown:
        raise BindingError(
            f"Sink {binding.stream!r}: the table in {binding.directory} is partitioned by {', '.join(unknown)}, but "
            f"the records have only {', '.join(schema.names)}."
        )
    wrong = [name for name in parts if not is_partition_type(schema.field(name).type)]
    if wrong:
        raise BindingError(
            f"Sink {binding.stream!r}: {', '.join(wrong)} cannot partition a table; text, whole numbers, dates and "
            "booleans can. Partition by a date made from a time, for example."
        )
    if len(parts) == len(schema):
        raise BindingError(
            f"Sink {binding.stream!r}: a table needs a column besides those that it is partitioned by."
        )


def _check_rules(table: DeltaTable, binding: DeltaBinding) -> None:
    """Refuse a table that requires more of its writers than adding files."""
    settings = table.metadata().configuration
    rules = [name for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        rules.append("delta.columnMapping.mode")
    for field in json.loads(table.schema().to_json())["fields"]:
        rules += [
            f"{name} of {field['name']}" for name in field["metadata"] if name.startswith(_COLUMN_RULES)
        ]
    features = set(table.protocol().writer_features or ()) - _HARMLESS
    rules += [f"the feature {name}" for name in sorted(features)]
    if rules:
        raise BindingError(
            f"Sink {binding.stream!r}: the Delta table {binding.directory} has {', '.join(rules)}, which penstock does "
            "not keep. Bind the sink to a table without, and fill this one from there."
        )


def _delta_schema(binding: DeltaBinding, schema: pa.Schema) -> Any:
    from deltalake import Schema

    try:
        return Schema.from_arrow(schema)
    except Exception as e:  # the library may raise anything
        raise BindingError(
            f"Sink {binding.stream!r}: the records have a field of a type that Delta Lake does not have ({e}). Cast it "
            "in the job."
        ) from e


def _fields(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of a schema by name, without notes on them."""
    found = _without_notes(json.loads(schema.to_json()))
    return {field["name"]: field for field in found["fields"]}


def _without_notes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_notes(part) for name, part in value.items() if name != "metadata"}
    return [_without_notes(part) for part in value] if isinstance(value, list) else value


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _type_call(kind: Any) -> str:
    return f'PrimitiveType("{kind}")' if isinstance(kind, str) else "..."
