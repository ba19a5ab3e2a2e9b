"""Model policies: the commands that the policies of a job's models send, by the scores of their versions.

The scores of a micro-batch decide, so the command comes after it, as if a person had sent it: it is read, journaled,
carried out at one cut and repeated in a replay like any other. Its id follows from the status of the version, so one
that is sent again after a crash counts once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from penstock.control.commands import Command, Target
from penstock.control.receipts import StepTime
from penstock.models.model import Model
from penstock.models.model_policy import Decision, ModelPolicy, VersionFigures, decide
from penstock.models.score_windows import ScoreWindow, add_scores, window_figures
from penstock.models.tallies import VersionTally
from penstock.models.versions import SERVING

__all__ = ["POLICY", "ModelPolicies", "ModelReports", "Scores"]

POLICY: Final = "policy"
"""Who sends the commands of policies."""

Scores: TypeAlias = Mapping[str, Mapping[str, Mapping[str, VersionTally]]]
"""What versions have scored, by step, model and version."""


@dataclass(frozen=True)
class ModelReports:
    """The reports of a job up to a micro-batch: versions, settings, its scores and the total scores, by step.

    `suspended` has the versions that are not called any more, with the reason, by step and model. `times` is the event
    time that each step has reached.
    """

    now_ms: int
    versions: Mapping[str, Mapping[str, Mapping[str, Any]]]
    settings: Mapping[str, Mapping[str, Any]]
    scores: Scores
    totals: Scores
    suspended: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    times: Mapping[str, StepTime | None] = field(default_factory=dict)

    def now_of(self, policy: ModelPolicy, step: str) -> int | None:
        """Return the time that counts for a policy in milliseconds since 1970; None if it is not known or has ended."""
        if policy.time == "processing":
            return self.now_ms
        found = self.times.get(step)
        # At the end of event time there is no such date.
        return found.watermark_ms if found is not None and isinstance(found.watermark, dt.datetime) else None


class ModelPolicies:
    """The policies of a job's models. `models` has the declared models of each step by name.

    `windows` are those of an earlier run, by step and model; they are changed in place. `figures` has the scores of
    versions within them, by step, model and version.
    """

    def __init__(
        self, models: Mapping[str, Mapping[str, Model]], windows: dict[str, dict[str, ScoreWindow]]
    ) -> None:
        self._models: Final = {step: found for step, found in models.items() if found}
        self._windows: Final = windows
        self._sent: Final[set[str]] = set()
        self.figures: dict[tuple[str, str, str], VersionFigures] = {}

    def see(self, reports: ModelReports) -> list[Command]:
        """See the reports of a micro-batch; return the commands that follow, each once."""
        self.figures = {}
        commands = []
        for step, models in self._models.items():
            for name, model in models.items():
                commands += self._see(reports, step, name, model)
        new = [command for command in commands if command.id not in self._sent]
        self._sent.update(command.id for command in new)
        return new

    def _see(self, reports: ModelReports, step: str, name: str, model: Model) -> list[Command]:
        versions = reports.versions.get(step, {}).get(name, {})
        policy = _policy_of(model, reports.settings.get(step, {}))
        window = self._windows.setdefault(step, {}).setdefault(name, ScoreWindow())
        scores = reports.scores.get(step, {}).get(name, {})
        now_ms = reports.now_of(policy, step)
        clock = (policy.time, policy.window_ms)
        add_scores(window, versions, {} if now_ms is None else scores, now_ms, clock)
        figures = window_figures(window, versions, reports.totals.get(step, {}).get(name, {}))
        self.figures |= {(step, name, version): found for version, found in figures.items()}
        statuses = {version: found["status"] for version, found in versions.items()}
        before = next((one.get("before") for one in versions.values() if one["status"] == SERVING), None)
        suspended = reports.suspended.get(step, {}).get(name, {})
        decisions = decide(policy, statuses, figures, before, suspended)
        return [_command(step, name, one, versions[one.version]) for one in decisions]


def _policy_of(model: Model, settings: Mapping[str, Any]) -> ModelPolicy:
    """Return the policy in force, as the newest micro-batches reported it."""
    found = settings.get(model.policy.name)
    return model.policy.default if found is None else msgspec.convert(found, ModelPolicy)


def _command(step: str, model: str, decision: Decision, version: Mapping[str, Any]) -> Command:
    stay = (step, model, decision.version, version["status"], version.get("command", ""), decision.kind)
    digest = hashlib.sha256(msgspec.json.encode(stay)).hexdigest()[:12]
    payload: dict[str, Any] = {
        "model": model,
        "version": decision.version,
        "reason": decision.reason,
    }
    if decision.share:
        payload |= {"share": decision.share}
    return Command(
        id=f"{POLICY}-{digest}",
        kind=decision.kind,
        target=Target(step),
        issued_by=POLICY,
        # One cut for all slots, in real time, too.
        apply="at-checkpoint",
        payload=msgspec.Raw(msgspec.json.encode(payload)),
    )
