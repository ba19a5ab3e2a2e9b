"""Job lookups: the tables in which a job looks records up, from their bindings, checked at a start."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.bindings.types import Binding, PostgresBinding
from penstock.databases.looked_up_table import PostgresLookup
from penstock.joins.lookup_source import LookupSource
from penstock.joins.table_lookup import TableLookup
from penstock.streams.job_description import JobDescription

__all__ = ["find_lookup_keys", "open_lookups"]


def open_lookups(job: JobDescription, bindings: Mapping[str, Binding]) -> dict[str, LookupSource]:
    """Return the tables in which a job looks records up, each checked. Raises BindingError or ExternalSystemError."""
    found: dict[str, LookupSource] = {}
    for name, kind in job.graph.lookups.items():
        binding = bindings[name]
        assert isinstance(binding, PostgresBinding), "no other scheme has the role"
        found[name] = PostgresLookup.of(binding, kind.schema)
        for fields in find_lookup_keys(job, name):
            found[name].check(fields)
    return found


def find_lookup_keys(job: JobDescription, table: str) -> list[tuple[str, ...]]:
    """Return the fields by which steps look records up in a table, each combination once."""
    functions = [node.function for node in job.graph.steps()]
    found = [one.fields for one in functions if isinstance(one, TableLookup) and one.table == table]
    return list(dict.fromkeys(found))
