"""Opens sources for the conformance kit: a receiver with its journal, or objects, each with its own checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from receiving_process import receiver

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import DeltaBinding, IcebergBinding, ObjectsBinding
from penstock.lakes.lake_log import LakeLog
from penstock.sinks.object_sink import open_folder
from penstock.sources.base import ReplayableLog
from penstock.sources.journal import JournalLog
from penstock.sources.object_log import ObjectLog

__all__ = ["journaling", "objects_at", "table_at"]


def journaling(
    folder: Path, uri: str, fields: str = "id BIGINT"
) -> Callable[[], AbstractContextManager[ReplayableLog[Any]]]:
    """Return a function that opens the source of a URI, journaled in this folder. Rows of a table have
    `fields`.
    """

    @contextmanager
    def opened() -> Iterator[ReplayableLog[Any]]:
        with receiver(folder, uri, fields=fields):
            yield JournalLog(folder)

    return opened


def objects_at(uri: str, found: Path) -> Callable[[], AbstractContextManager[ObjectLog]]:
    """Return a function that opens the source of a URI of objects; `found` is its list of them."""
    binding = parse_binding("readings", uri, "data")
    assert isinstance(binding, ObjectsBinding)

    @contextmanager
    def opened() -> Iterator[ObjectLog]:
        log = ObjectLog(binding, open_folder, found)
        log.check()
        yield log

    return opened


def table_at(uri: str, found: Path) -> Callable[[], AbstractContextManager[LakeLog]]:
    """Return a function that opens the source of a URI of a lake table; `found` is its list of files."""
    binding = parse_binding("readings", uri, "data")
    assert isinstance(binding, DeltaBinding | IcebergBinding)

    @contextmanager
    def opened() -> Iterator[LakeLog]:
        log = LakeLog(binding, found)
        log.check()
        yield log

    return opened
