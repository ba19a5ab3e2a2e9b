"""Iceberg table: opened or created at a start, and checked to take the records of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.base.durable import make_folder
from penstock.bindings.types import IcebergBinding
from penstock.errors import BindingError
from penstock.lakes.iceberg_catalog import (
    as_external,
    catalog_file,
    check_folder,
    open_catalog,
    open_existing_table,
    open_table,
)
from penstock.lakes.iceberg_types import format_type, iceberg_schema, without_ids

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

__all__ = ["check_table", "ensure_table", "partition_arrays"]

# Each commit adds a manifest, and lists all of them again.
_SETTINGS: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
_VERSIONS: Final = (1, 2)


def ensure_table(binding: IcebergBinding, schema: pa.Schema) -> Table:
    """Open the table of a binding and check that it takes records, or create it.

    Raises PlaceMissingError when it does not exist and is not to be created, and BindingError when it cannot be used.
    """
    table = open_table(binding) if binding.create_table else open_existing_table(binding)
    if table is None:
        table = _created(binding, schema)
    check_table(table, binding, schema)
    return table


def _created(binding: IcebergBinding, schema: pa.Schema) -> Table:
    from pyiceberg.exceptions import TableAlreadyExistsError

    wanted = _wanted(binding, schema)
    spec = _wanted_spec(binding, wanted)
    check_folder(binding)
    file = catalog_file(binding)
    try:
        if file is not None:
            make_folder(file.parent)
    except OSError as e:
        raise BindingError(
            f"Sink {binding.stream!r}: {file} cannot be written ({e.strerror or e}). Make it writable, or name another "
            "file with catalog=."
        ) from e
    catalog = open_catalog(binding)
    with as_external(binding):
        for count in range(1, len(binding.namespace) + 1):
            catalog.create_namespace_if_not_exists(binding.namespace[:count])
        name = (*binding.namespace, binding.table)
        try:
            return catalog.create_table(name, wanted, partition_spec=spec, properties=_SETTINGS)
        except TableAlreadyExistsError:
            return catalog.load_table(name)


def check_table(table: Table, binding: IcebergBinding, schema: pa.Schema) -> None:
    """Raise BindingError, with the remedy, unless a table takes records of a schema."""
    place = f"Sink {binding.stream!r}: the Iceberg table {binding.place}"
    if table.format_version not in _VERSIONS:
        raise BindingError(
            f"{place} has the format version {table.format_version}; penstock writes versions 1 and 2. Bind the sink "
            "to a table of version 2."
        )
    there = {field.name: field for field in table.schema().fields}
    wanted = {field.name: field for field in _wanted(binding, schema).fields}
    missing = [name for name in wanted if name not in there]
    if missing:
        calls = ", ".join(f'update.add_column("{name}", {wanted[name].field_type!r})' for name in missing)
        raise BindingError(
            f"{place} has no column {', '.join(missing)}; it has {', '.join(there)}. Leave the fields out of the "
            f"records, or run: with table.update_schema() as update: {calls}"
        )
    for name, field in wanted.items():
        if without_ids(field.field_type) != without_ids(there[name].field_type):
            raise BindingError(
                f"{place} has {name} as {format_type(there[name].field_type)}, but the records have it as "
                f"{format_type(field.field_type)}. Cast the field in the job, or bind the sink to another table."
            )
        if there[name].required and not field.required:
            raise BindingError(
                f"{place} needs a value for {name}, which may be missing in the records. Declare the field as NOT "
                f'NULL, or run: with table.update_schema() as update: update.make_column_optional("{name}")'
            )
    needed = [name for name, field in there.items() if field.required and name not in wanted]
    if needed:
        raise BindingError(f"{place} needs a value for {', '.join(needed)}, which the records do not have.")
    _check_spec(table, binding, schema)


def _check_spec(table: Table, binding: IcebergBinding, schema: pa.Schema) -> None:
    found = _rules(table.spec(), table.schema())
    wanted = [(rule.field, rule.transform) for rule in binding.partition_by]
    if wanted and wanted != found:
        parts = ", ".join(name if how == "identity" else f"{how} of {name}" for name, how in found)
        has = f"is partitioned by {parts}" if parts else "is not partitioned"
        raise BindingError(
            f"Sink {binding.stream!r}: the Iceberg table {binding.place} {has}, and not by "
            f"{', '.join(map(str, binding.partition_by))}. Leave partition_by out, which takes the table as it is, or "
            "bind the sink to another table."
        )
    unknown = [name for name, _ in found if name not in schema.names]
    if unknown:
        raise BindingError(
            f"Sink {binding.stream!r}: the Iceberg table {binding.place} is partitioned by {', '.join(unknown)}, but "
            f"the records have only {', '.join(schema.names)}."
        )


def _rules(spec: PartitionSpec, schema: Schema) -> list[tuple[str, str]]:
    """Return the field and the transform of each partition field."""
    return [
        (schema.find_column_name(field.source_id) or str(field.source_id), str(field.transform))
        for field in spec.fields
    ]


def _wanted(binding: IcebergBinding, schema: pa.Schema) -> Schema:
    try:
        return iceberg_schema(schema)
    except ValueError as e:
        raise BindingError(
            f"Sink {binding.stream!r}: the records have a field of a type that Iceberg does not have ({e}). Cast it "
            "in the job."
        ) from e


def _wanted_spec(binding: IcebergBinding, schema: Schema) -> PartitionSpec:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields = []
    names = [field.name for field in schema.fields]
    for number, rule in enumerate(binding.partition_by, 1000):
        if rule.field not in names:
            raise BindingError(
                f"Sink {binding.stream!r}: the table {binding.place} is to be partitioned by {rule.field}, but the "
                f"records have only {', '.join(names)}."
            )
        source = schema.find_field(rule.field)
        transform = parse_transform(rule.transform)
        is_floating = str(source.field_type) in ("float", "double")
        if (
            is_floating
            or not source.field_type.is_primitive
            or not transform.can_transform(source.field_type)
        ):
            raise BindingError(
                f"Sink {binding.stream!r}: {rule} cannot partition a table, since {rule.field} is "
                f"{format_type(source.field_type)}. Choose another field or transform."
            )
        suffix = rule.transform.partition("[")[0]
        name = rule.field if suffix == "identity" else f"{rule.field}_{suffix}"
        fields.append(PartitionField(source.field_id, number, transform, name))
    return PartitionSpec(*fields)


def partition_arrays(batch: pa.RecordBatch, spec: PartitionSpec, schema: Schema) -> list[pa.Array]:
    """Return the partition values of records, an array for each partition field."""
    found = []
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        values = field.transform.pyarrow_transform(source.field_type)(batch.column(source.name))
        found.append(values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values)
    return found
