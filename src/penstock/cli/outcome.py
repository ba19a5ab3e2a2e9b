"""Outcomes of requests, as all verbs print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli.job_target import Outcome
from penstock.cli.output import Output, escape, print_json, stderr

__all__ = ["print_outcome"]


def print_outcome(done: Outcome, output: Output) -> Mapping[str, Any] | None:
    """Print an outcome as JSON, or the id of an operation that was not waited for, or notes.

    Returns the details that remain to be printed as text; None if there are none.
    """
    if output is Output.json:
        print_json(done.content)
        return None
    for note in done.notes:
        stderr.print(escape(note), soft_wrap=True)
    if done.details is None:
        print(done.ids["operation"], flush=True)
    return done.details
