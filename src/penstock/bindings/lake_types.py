"""Lake types: tables of files that a stream is bound to, once its URI is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["DeltaBinding", "IcebergBinding", "LakeReading", "PartitionRule"]


@dataclass(frozen=True)
class LakeReading:
    """How a source reads a table that grows.

    With `start="latest"` a job without a checkpoint leaves out what the table has. `changed` says what happens when a
    commit deletes or rewrites rows.
    """

    start: Literal["earliest", "latest"] = "earliest"
    changed: Literal["fail", "skip"] = "fail"
    max_files_per_batch: int | None = None
    max_bytes_per_batch: int | None = None


@dataclass(frozen=True)
class DeltaBinding:
    """A table of Delta Lake. `directory` is an absolute path, or the URI of a prefix of a bucket of S3.

    With a `bucket`, `client` has environment variables of S3 that override those of the process; the values may be
    references.

    `partition_by` are the fields that split its files; empty if the table decides. `upsert_by` are the fields
    that identify a row which a later record replaces; without them each record becomes a row.
    """

    stream: str
    uri: str
    directory: str
    partition_by: tuple[str, ...] = ()
    create_table: bool = True
    reading: LakeReading = LakeReading()
    upsert_by: tuple[str, ...] = ()
    scheme: str = ""
    bucket: str = ""
    prefix: str = ""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """The folder of the table, for messages."""
        return self.directory

    @property
    def path(self) -> Path:
        """The folder of the table."""
        return Path(self.directory)


@dataclass(frozen=True)
class PartitionRule:
    """A field by which files are split, and the function of its values: `transform` as Iceberg names it."""

    field: str
    transform: str = "identity"

    def __str__(self) -> str:
        name, bracket, number = self.transform.partition("[")
        if name == "identity":
            return self.field
        return f"{name}({number.rstrip(']')},{self.field})" if bracket else f"{name}({self.field})"


@dataclass(frozen=True)
class IcebergBinding:
    """A table of an Iceberg catalog. `uri` has secrets masked.

    `catalog` is the address of a REST catalog, or what SQLAlchemy connects to. `login` has settings of pyiceberg with
    secrets, and `client` environment variables of S3 that count more than those of the process; the values of both may
    be references. `partition_by` is empty if the table decides. `upsert_by` is that of `DeltaBinding`.
    """

    stream: str
    uri: str
    namespace: tuple[str, ...]
    table: str
    catalog: str
    catalog_name: str = "default"
    warehouse: str | None = None
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[PartitionRule, ...] = ()
    create_table: bool = True
    reading: LakeReading = LakeReading()
    upsert_by: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The name of the table."""
        return ".".join((*self.namespace, self.table))

    @property
    def is_rest(self) -> bool:
        """Whether the catalog is asked by HTTP."""
        return self.catalog.startswith(("http:", "https:"))
