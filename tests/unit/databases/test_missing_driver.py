"""The error for a job that is bound to a database without the required extra."""

from __future__ import annotations

import sys

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.databases.postgres_sink import PostgresSink
from penstock.errors import BindingError
from penstock.records.schemas import record_type


def test_a_missing_driver_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at the start of the job, before anything is written."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    binding = parse_binding("alerts", "postgresql://me@h:1/d/t", "sink")
    assert isinstance(binding, PostgresBinding)
    sink = PostgresSink(binding, record_type("n BIGINT"))
    for step in (sink.newest, sink.prepare):
        with pytest.raises(BindingError, match=r"Install it: pip install 'penstock\[postgresql\]'"):
            step("line", "")
