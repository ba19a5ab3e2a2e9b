"""A job that is bound to Cassandra without the extra for it."""

from __future__ import annotations

import sys

import pytest

from penstock.bindings.parse import parse_binding
from penstock.errors import BindingError
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type


def test_a_missing_client_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start of the job, before anything is written."""
    monkeypatch.setitem(sys.modules, "cassandra", None)
    sink = open_sink(parse_binding("latest", "cassandra://h:1/k/t", "sink"), record_type("n BIGINT"), None)
    with pytest.raises(BindingError, match=r"Install it: pip install 'penstock\[cassandra\]'"):
        sink.prepare("line", "")
