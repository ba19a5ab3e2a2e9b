"""Listed models: the models of a job with their versions and the scores of these, from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import stored_counts
from penstock.commands.command_catalog import read_command_catalog
from penstock.models.library import MODELS, is_examined_content, read_failure
from penstock.models.model_policy import VersionFigures, figures_of, policy_setting
from penstock.models.score_windows import ScoreWindow, window_figures
from penstock.models.tallies import VersionTally
from penstock.models.versions import SERVING

__all__ = ["ListedModel", "ListedVersion", "list_models"]


@dataclass(frozen=True, kw_only=True)
class ListedVersion:
    """A version of a model, and its scores since the checkpoint began."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}

    version: str
    status: Literal["REGISTERED", "VALIDATED", "SHADOW", "CANARY", "SERVING", "RETIRED"]
    format: str
    sha256: str
    """The SHA-256 of its content."""
    content_bytes: int | None
    """The size of its content in the checkpoint; null before it was fetched."""
    is_examined: bool
    """Whether its content was examined, which must happen before it is validated."""
    failure: str | None
    """Why the last attempt to fetch its content failed; null otherwise."""
    uri: str
    """The place from which it was loaded."""
    metadata: Any
    """The metadata that its sender gave."""
    changed_by: str
    """Who sent the last command that changed it; `policy` if its policy did."""
    command: str
    """The id of the command that gave it its status; empty if unknown."""
    share: float | None
    """The share of the keys that it serves as a canary; null otherwise."""
    pinned: int
    """The number of keys that are pinned to it."""
    records: int
    failures: int
    """The number of records without a usable score."""
    slow: int
    """The number of records for which it took more than ten times its budget."""
    late: int
    """In a group, the number of records for which its answer came after the deadline."""
    chosen: int
    """In a group, the number of records for which it gave the score or voted."""
    ms: float | None
    """The time for 1,000 records in milliseconds; null before the first."""
    p99_ms: float | None
    """The time that 99 in 100 calls do not exceed, in milliseconds; null before the first."""
    agreement: float | None
    """The share of records that it scored in the shadow like the serving version; null without any."""
    drift: float | None
    """The population stability index of its scores against those of the serving version; null if unknown."""
    ks: float | None
    """The Kolmogorov-Smirnov statistic of the same scores; null if unknown."""
    recent: VersionFigures | None
    """The figures within the window of the policy, in its present status; null if it does not score."""


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A model that a step declares, with its policy, and its versions in the order in which they were loaded."""

    step: str
    model: str
    policy: Any
    """When versions are promoted or rolled back automatically: the setting of the step that is named after the model.

    Null before the first micro-batch.
    """
    versions: tuple[ListedVersion, ...]


class _Counts(msgspec.Struct, frozen=True):
    """Versions and scores, as the newest micro-batches reported them."""

    models: dict[str, dict[str, dict[str, Any]]] = {}
    settings: dict[str, dict[str, Any]] = {}
    scores: dict[str, dict[str, dict[str, VersionTally]]] = {}
    windows: dict[str, dict[str, ScoreWindow]] = {}


def list_models(checkpoint: Path) -> list[ListedModel]:
    """Return the models that the steps of a job declare. Raises CheckpointError."""
    catalog = read_command_catalog(checkpoint)
    counts = stored_counts(Checkpoint(checkpoint), _Counts) or _Counts()
    return [
        ListedModel(
            step=name,
            model=model,
            policy=counts.settings.get(name, {}).get(policy_setting(model)),
            versions=_versions(
                counts.models.get(name, {}).get(model, {}),
                counts.scores.get(name, {}).get(model, {}),
                counts.windows.get(name, {}).get(model, ScoreWindow()),
                checkpoint / MODELS,
                (name, model),
            ),
        )
        for name, step in catalog.steps.items()
        for model in step.models
    ]


def _versions(
    versions: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, VersionTally],
    window: ScoreWindow,
    library: Path,
    owner: tuple[str, str],
) -> tuple[ListedVersion, ...]:
    serving = next((name for name, found in versions.items() if found["status"] == SERVING), None)
    recent = window_figures(window, versions, scores)
    listed = []
    for name, found in versions.items():
        reference = None if name == serving else scores.get(serving or "")
        tally = scores.get(name, VersionTally())
        figures = figures_of(tally, reference)
        listed.append(
            ListedVersion(
                version=name,
                status=found["status"],
                format=found["format"],
                sha256=found["sha256"],
                content_bytes=_size(library / found["sha256"]),
                is_examined=is_examined_content(library, found["sha256"]),
                failure=read_failure(library, *owner, name),
                uri=found["uri"],
                metadata=found["metadata"],
                changed_by=found["changed_by"],
                command=found.get("command", ""),
                share=found.get("share"),
                pinned=found.get("pinned", 0),
                records=figures.records,
                failures=figures.failures,
                slow=figures.slow,
                late=tally.late,
                chosen=tally.chosen,
                ms=figures.ms,
                p99_ms=figures.p99_ms,
                agreement=figures.agreement,
                drift=figures.drift,
                ks=figures.ks,
                recent=recent.get(name),
            )
        )
    return tuple(listed)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
