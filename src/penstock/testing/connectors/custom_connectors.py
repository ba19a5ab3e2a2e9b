"""Custom connectors, opened for the conformance kit as a job opens them, from their URIs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PythonBinding, Role
from penstock.connectors.custom_class import bind_class
from penstock.connectors.custom_log import open_custom_log
from penstock.connectors.custom_receiver import CustomReceiver
from penstock.connectors.custom_sink import CustomSink
from penstock.errors import BindingError
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.base import Sink
from penstock.sources.base import ReplayableLog
from penstock.sources.journal import JournalLog, JournalWriter

__all__ = ["open_custom_sink", "open_custom_source"]


def open_custom_sink(uri: str, schema: str = "id BIGINT NOT NULL, value STRING NOT NULL") -> Sink:
    """Return the sink of a URI `python:module:Class?option=value`, for records with a schema, as the kit has them."""
    return CustomSink(_binding(uri, "sink"), format_of("json", record_type(schema)))


@contextmanager
def open_custom_source(uri: str, folder: str | Path) -> Iterator[ReplayableLog[Any]]:
    """Open the source of a URI `python:module:Class?option=value`; its part of the checkpoint is in a folder."""
    binding, folder = _binding(uri, "data"), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if binding.kind == "log":
        yield open_custom_log(binding, folder / "source.begins")
        return
    journal = folder / "source.journal"
    with CustomReceiver(binding, JournalWriter(journal)):
        yield JournalLog(journal)


def _binding(uri: str, role: Role) -> PythonBinding:
    binding = parse_binding("kit", uri, role)
    if not isinstance(binding, PythonBinding):
        raise BindingError(f"{uri!r} names no class of your own; write python:MODULE:CLASS.")
    return bind_class(binding, is_sink=role == "sink")
