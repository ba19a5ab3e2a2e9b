"""Iceberg catalog: opened as a binding says, with its errors as sentences."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.bindings.secrets import resolve_settings
from penstock.bindings.types import IcebergBinding
from penstock.errors import BindingError, ExternalSystemError, PenstockError, PlaceMissingError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = [
    "as_external",
    "catalog_file",
    "check_folder",
    "file_settings",
    "open_catalog",
    "open_existing_table",
    "open_table",
    "require_library",
    "without_own",
]

_SQLITE: Final = "sqlite:///"
_IO: Final = {"py-io-impl": "penstock.lakes.synced_io.SyncedIO"}
# The environment variables that object sinks know, and their names in pyiceberg.
_S3_SETTINGS: Final = {
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ENDPOINT_URL_S3": "s3.endpoint",
    "AWS_REGION": "s3.region",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
}
_FROM_ENVIRONMENT: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION")


def require_library(stream: str) -> None:
    """Raise BindingError with the command when the library is missing."""
    try:
        import pyiceberg
        import pyiceberg_core  # noqa: F401  # only whether they are there
    except ImportError:
        raise BindingError(
            f"Stream {stream!r}: Iceberg needs pyiceberg, which is not installed. Install it: "
            "pip install 'penstock[iceberg]'."
        ) from None
    del pyiceberg


def open_catalog(binding: IcebergBinding) -> Catalog:
    """Open the catalog of a binding. Raises BindingError without the library, and ExternalSystemError."""
    require_library(binding.stream)
    login = resolve_settings(binding.stream, binding.login)
    settings = {**file_settings(binding), "uri": binding.catalog}
    if binding.warehouse is not None:
        settings["warehouse"] = binding.warehouse
    with as_external(binding):
        if binding.is_rest:
            from pyiceberg.catalog.rest import RestCatalog

            # The library would otherwise guess, and warn of it.
            tokens = f"{binding.catalog.rstrip('/')}/v1/oauth/tokens"
            return RestCatalog(binding.catalog_name, **settings, **login, **{"oauth2-server-uri": tokens})
        from pyiceberg.catalog.sql import SqlCatalog

        if not binding.create_table:
            settings["init_catalog_tables"] = "false"
        if "password" in login:
            password = urllib.parse.quote(login["password"], safe="")
            settings["uri"] = binding.catalog.replace("@", f":{password}@", 1)
        return SqlCatalog(binding.catalog_name, **settings)


def open_table(binding: IcebergBinding) -> Table | None:
    """Open the table of a binding; None if there is none. Of a new catalog it makes nothing but its own tables."""
    require_library(binding.stream)
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    file = catalog_file(binding)
    if file is not None and not file.exists():
        return None
    catalog = open_catalog(binding)
    with as_external(binding):
        try:
            return catalog.load_table((*binding.namespace, binding.table))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def open_existing_table(binding: IcebergBinding) -> Table:
    """Open the table of a binding. Raises PlaceMissingError when there is none, and what `check_folder` raises."""
    check_folder(binding)
    table = open_table(binding)
    if table is None:
        raise PlaceMissingError(
            f"Stream {binding.stream!r}: the catalog {_shown(binding)} has no table {binding.place}. Create it, or "
            "leave create_table=false out of the URI."
        )
    return table


def check_folder(binding: IcebergBinding) -> None:
    """Raise BindingError unless the folder of a catalog in a file exists, or is that of the warehouse, which is made.

    A wrong path would begin a second catalog.
    """
    file = catalog_file(binding)
    if file is None or file.parent.is_dir() or f"file://{file.parent}" == binding.warehouse:
        return
    raise BindingError(
        f"Stream {binding.stream!r}: the catalog {file} cannot be there: {file.parent} is no folder. Correct catalog= "
        f"in the URI, or make the folder for a new catalog: mkdir -p {file.parent}."
    )


def catalog_file(binding: IcebergBinding) -> Path | None:
    """Return the file of a catalog in SQLite; None for other catalogs."""
    return Path(binding.catalog.removeprefix(_SQLITE)) if binding.catalog.startswith(_SQLITE) else None


def file_settings(binding: IcebergBinding) -> dict[str, str]:
    """Return pyiceberg's settings for the files of a table, with the secrets as this process has them."""
    environment = {name: os.environ[name] for name in _FROM_ENVIRONMENT if os.environ.get(name)}
    found = {**environment, **resolve_settings(binding.stream, binding.client)}
    return {**_IO, **{setting: found[name] for name, setting in _S3_SETTINGS.items() if name in found}}


@contextmanager
def as_external(binding: IcebergBinding) -> Iterator[None]:
    """Turn errors of the library, a catalog and a file system into ExternalSystemError."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as e:  # the library passes on any error of its clients
        raise ExternalSystemError(
            f"Stream {binding.stream!r}: the Iceberg table {binding.place} of the catalog {_shown(binding)} cannot be "
            f"read or written ({_reason(e)}). Start the job again when it can."
        ) from None


def without_own(binding: IcebergBinding, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for files that a catalog has given, without those that each process finds itself."""
    secrets = {*resolve_settings(binding.stream, binding.login).values()}
    own = file_settings(binding)
    return {
        name: value
        for name, value in settings.items()
        if own.get(name) != value and value not in secrets and name != "uri"
    }


def _reason(error: Exception) -> str:
    """Return the first line of an error; those of databases continue with the statement and its values."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _shown(binding: IcebergBinding) -> str:
    return binding.catalog.removeprefix(_SQLITE).replace("+psycopg", "", 1)
