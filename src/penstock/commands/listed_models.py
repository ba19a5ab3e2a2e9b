"""Listed models: the models of a job with their versions, and what these have scored, from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import stored_counts
from penstock.commands.command_catalog import read_command_catalog
from penstock.models.tallies import VersionTally, drift_psi
from penstock.models.versions import SERVING

__all__ = ["ListedModel", "ListedVersion", "list_models"]


class ListedVersion(msgspec.Struct, frozen=True):
    """A version of a model.

    `records` and `failures` count what it has scored since the checkpoint began, and `ms` is the time for 1,000
    records. `agreement` is the share of the records that a shadow has scored as the version that serves did, `drift`
    the population stability index of its scores against those of that version; both are None if unknown. `pinned` is
    the number of keys.
    """

    version: str
    status: str
    format: str
    sha256: str
    uri: str
    metadata: Any
    changed_by: str
    share: float | None
    pinned: int
    records: int
    failures: int
    ms: float | None
    agreement: float | None
    drift: float | None


class ListedModel(msgspec.Struct, frozen=True):
    """A model that a step declares, with its versions in the order in which they were loaded."""

    step: str
    model: str
    versions: tuple[ListedVersion, ...]


class _Counts(msgspec.Struct, frozen=True):
    """Versions and scores, as the newest micro-batches reported them."""

    models: dict[str, dict[str, dict[str, Any]]] = {}
    scores: dict[str, dict[str, dict[str, VersionTally]]] = {}


def list_models(checkpoint: Path) -> list[ListedModel]:
    """Return the models that the steps of a job declare. Raises CheckpointError."""
    catalog = read_command_catalog(checkpoint)
    counts = stored_counts(Checkpoint(checkpoint), _Counts) or _Counts()
    return [
        ListedModel(
            name,
            model,
            _versions(counts.models.get(name, {}).get(model, {}), counts.scores.get(name, {}).get(model, {})),
        )
        for name, step in catalog.steps.items()
        for model in step.models
    ]


def _versions(
    versions: Mapping[str, Mapping[str, Any]], scores: Mapping[str, VersionTally]
) -> tuple[ListedVersion, ...]:
    serving = next((name for name, found in versions.items() if found["status"] == SERVING), None)
    reference = scores.get(serving or "", VersionTally())
    listed = []
    for name, found in versions.items():
        tally = scores.get(name, VersionTally())
        drift = None if name == serving else drift_psi(reference, tally)
        listed.append(
            ListedVersion(
                name,
                found["status"],
                found["format"],
                found["sha256"],
                found["uri"],
                found["metadata"],
                found["changed_by"],
                found.get("share"),
                found.get("pinned", 0),
                tally.records,
                tally.failures,
                round(tally.seconds / tally.records * 1e6, 3) if tally.records else None,
                round(tally.agreed / tally.compared, 4) if tally.compared else None,
                None if drift is None else round(drift, 4),
            )
        )
    return tuple(listed)
