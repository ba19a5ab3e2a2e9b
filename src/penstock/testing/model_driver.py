"""Model driver: does the work of a job's driver for its models, in the process of a test."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import msgspec

from penstock.base.instants import milliseconds_of
from penstock.commands.model_policies import ModelPolicies, ModelReports
from penstock.control.commands import Command
from penstock.control.receipts import StepTime, slowest_time
from penstock.models.tallies import VersionTally, add_tallies, scores_of
from penstock.runtime.packed_rows import TIME, time_of
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.model_store import store_of

__all__ = ["ModelDriver"]

_Scores = dict[str, dict[str, dict[str, VersionTally]]]


class ModelDriver:
    """The policies of the models of a job, which see the outcome of each micro-batch once."""

    def __init__(self, runner: BatchRunner) -> None:
        plan = runner.plan
        if runner.takes_answers:
            # They keep the answers that they took beside the checkpoint.
            store_of(runner)
        steps = plan.accepting.steps if plan.graph.steps() else {}
        self._policies: Final = ModelPolicies({name: step.models for name, step in steps.items()}, {})
        self._settings: Final[dict[str, Any]] = {}
        self._versions: Final[dict[str, Any]] = {}
        self._totals: Final[_Scores] = {}
        self._times: Final[dict[str, dict[int, StepTime]]] = {}

    def see(self, outcome: BatchOutcome, now: dt.datetime) -> list[Command]:
        """Return the commands that follow from a micro-batch."""
        scores: _Scores = {}
        known = {"settings": self._settings, "models": self._versions}
        for kind, step, slot, _, body in outcome.reports:
            if kind in known:
                known[kind][step] = msgspec.json.decode(body)
            elif kind == TIME:
                self._times.setdefault(step, {})[slot] = time_of(body)
            elif kind == "scores":
                for found in (scores, self._totals):
                    for model, tallies in scores_of(body).items():
                        add_tallies(found.setdefault(step, {}).setdefault(model, {}), tallies)
        times = {step: slowest_time(found.values()) for step, found in self._times.items()}
        reports = ModelReports(
            milliseconds_of(now), self._versions, self._settings, scores, self._totals, times=times
        )
        return self._policies.see(reports)
