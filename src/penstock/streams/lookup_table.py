"""Lookup tables: a table outside the job, in which steps look records up."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.records.types import RecordType
from penstock.streams.graph import Graph

__all__ = ["LookupTable"]


@dataclass(frozen=True)
class LookupTable:
    """A table outside the job, as declared with `job.lookup_table`. `lookup_join` looks records up in it."""

    graph: Graph
    name: str
    record_type: RecordType
