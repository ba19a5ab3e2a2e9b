"""Sources as the conformance kit opens them: a receiver with its journal, in a checkpoint of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from receiving_process import receiver

from penstock.sources.base import ReplayableLog
from penstock.sources.journal import JournalLog

__all__ = ["journaling"]


def journaling(
    folder: Path, uri: str, fields: str = "id BIGINT"
) -> Callable[[], AbstractContextManager[ReplayableLog[Any]]]:
    """What opens the source of a URI that is journaled in this folder. Rows of a table have `fields`."""

    @contextmanager
    def opened() -> Iterator[ReplayableLog[Any]]:
        with receiver(folder, uri, fields=fields):
            yield JournalLog(folder)

    return opened
