"""A job that is bound to Redis without the extra for it."""

from __future__ import annotations

import sys

import pytest

from penstock.bindings.parse import parse_binding
from penstock.doctor.bindings import check_binding
from penstock.errors import BindingError
from penstock.jobs.job_sinks import open_sink
from penstock.records.schemas import record_type


def test_a_missing_client_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start of the job, before anything is written."""
    monkeypatch.setitem(sys.modules, "redis", None)
    sink = open_sink(parse_binding("latest", "redis://h:1/0/k:{n}", "sink"), record_type("n BIGINT"), None)
    with pytest.raises(BindingError, match=r"Install it: pip install 'penstock\[redis\]'"):
        sink.prepare("line", "")


def test_the_doctor_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command as the remedy."""
    monkeypatch.setitem(sys.modules, "redis", None)
    found = check_binding("latest", parse_binding("latest", "redis://h:1/0/k:{n}", "sink"), is_source=False)
    assert (found.status, found.remedy) == ("failed", "Install it: pip install 'penstock[redis]'.")
