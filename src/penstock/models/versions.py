"""Versions: the life of the versions of a model, as pure decisions on a register.

    REGISTERED -> VALIDATED -> SHADOW -> CANARY -> SERVING -> RETIRED

Every slot of a step has the same register and decides alike, so a step in a version's life counts from one cut on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from penstock.models.orders import (
    CanaryModel,
    LoadModel,
    PinModel,
    PromoteModel,
    RemoveModel,
    RetireModel,
    RollBackModel,
    ShadowModel,
    ValidateModel,
)
from penstock.models.refusals import ModelRefusedError

__all__ = [
    "CANARY",
    "LIVE",
    "REGISTERED",
    "RETIRED",
    "SERVING",
    "SHADOW",
    "VALIDATED",
    "Cause",
    "Changes",
    "ModelVersion",
    "key_text",
    "next_versions",
    "serving_version",
    "version_before",
]

REGISTERED: Final = "REGISTERED"
VALIDATED: Final = "VALIDATED"
SHADOW: Final = "SHADOW"
CANARY: Final = "CANARY"
SERVING: Final = "SERVING"
RETIRED: Final = "RETIRED"
LIVE: Final = (SERVING, CANARY, SHADOW)
"""The statuses in which versions score records of all keys or of a share."""

_MAX_VERSIONS: Final = 200
_MAX_PINNED: Final = 10_000
# The statuses that a version may have when an order comes.
_FROM: Final[Mapping[type, tuple[str, ...]]] = {
    ValidateModel: (REGISTERED, VALIDATED),
    ShadowModel: (VALIDATED, CANARY, RETIRED),
    CanaryModel: (VALIDATED, SHADOW, CANARY, RETIRED),
    PromoteModel: (VALIDATED, SHADOW, CANARY, RETIRED),
    PinModel: (VALIDATED, SHADOW, CANARY, SERVING, RETIRED),
    RetireModel: (VALIDATED, SHADOW, CANARY, RETIRED),
    RemoveModel: (REGISTERED, VALIDATED, RETIRED),
}


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model, as a step keeps it.

    `share` is the share of the keys that a canary serves, `rank` the number of the promotion by which the version
    serves or last served, 0 if it never did or was rolled back. `pinned` has the keys that it serves in any case, as
    JSON. `metadata` is JSON. `changed_by` sent the last command that changed it; `command_id` and `command_kind` are of
    the command that gave it its status.
    """

    status: str
    format: str
    sha256: str
    uri: str
    metadata: str = "{}"
    share: float = 0.0
    rank: int = 0
    pinned: list[str] = dataclasses.field(default_factory=list)
    changed_by: str = ""
    command_id: str = ""
    command_kind: str = ""


class Cause(NamedTuple):
    """The command that changes versions: who sent it, its id and its kind."""

    by: str = ""
    id: str = ""
    kind: str = ""


Changes = dict[str, ModelVersion | None]
"""New and changed versions by name; None for one that is forgotten."""


def next_versions(versions: Mapping[str, ModelVersion], order: Any, cause: Cause) -> Changes:
    """Return how an order changes the versions of a model. Raises ModelRefusedError with the reason it cannot."""
    if isinstance(order, LoadModel):
        changes = _load(versions, order)
    elif isinstance(order, RollBackModel):
        changes = _roll_back(versions, order)
    elif isinstance(order, PinModel):
        changes = _pin(versions, order)
    elif isinstance(order, RemoveModel):
        changes = _remove(versions, order)
    else:
        changes = _advance(versions, order)
    return {
        name: None if found is None else _changed(versions.get(name), found, cause)
        for name, found in changes.items()
    }


def _changed(before: ModelVersion | None, found: ModelVersion, cause: Cause) -> ModelVersion:
    found = dataclasses.replace(found, changed_by=cause.by)
    if before is not None and before.status == found.status:
        return found
    return dataclasses.replace(found, command_id=cause.id, command_kind=cause.kind)


def serving_version(versions: Mapping[str, ModelVersion]) -> str | None:
    """Return the version that serves, if any."""
    return next((name for name, found in versions.items() if found.status == SERVING), None)


def version_before(versions: Mapping[str, ModelVersion], name: str) -> str | None:
    """Return the version that scores where `name` cannot: the serving one, or the one that served before it."""
    serving = serving_version(versions)
    if name != serving:
        return serving
    rank = versions[name].rank
    earlier = [(found.rank, other) for other, found in versions.items() if 0 < found.rank < rank]
    return max(earlier, default=(0, None))[1]


def key_text(key: Any) -> str:
    """Return the text by which a pinned key is known."""
    return msgspec.json.encode(key, order="deterministic").decode()


def _known(versions: Mapping[str, ModelVersion], order: Any) -> ModelVersion:
    found = versions.get(order.version)
    if found is None:
        known = ", ".join(versions) or "none"
        raise ModelRefusedError(
            f"the model {order.model!r} has no version {order.version!r}; it has {known}. Send load-model first"
        )
    allowed = _FROM[type(order)]
    if found.status not in allowed:
        raise ModelRefusedError(
            f"version {order.version!r} of the model {order.model!r} is {found.status}; this takes one that is "
            f"{' or '.join(allowed)}"
        )
    return found


def _load(versions: Mapping[str, ModelVersion], order: LoadModel) -> Changes:
    if order.version in versions:
        raise ModelRefusedError(
            f"the model {order.model!r} has a version {order.version!r} already; give the new one another name"
        )
    metadata = msgspec.json.encode(order.metadata, order="deterministic").decode()
    changes: Changes = {
        order.version: ModelVersion(REGISTERED, order.format, order.sha256, order.uri, metadata)
    }
    if len(versions) >= _MAX_VERSIONS:
        spare = _spare(versions)
        idle = (
            name
            for name, found in versions.items()
            if found.status in (REGISTERED, RETIRED) and not found.pinned and name != spare
        )
        oldest = next(idle, None)
        if oldest is None:
            raise ModelRefusedError(
                f"the model {order.model!r} has {len(versions)} versions in use; retire some of them first"
            )
        changes[oldest] = None
    return changes


def _advance(versions: Mapping[str, ModelVersion], order: Any) -> Changes:
    """Return the changes of an order that moves one version on."""
    found = _known(versions, order)
    serving = serving_version(versions)
    if isinstance(order, ValidateModel):
        return {order.version: dataclasses.replace(found, status=VALIDATED)}
    if isinstance(order, RetireModel):
        return {order.version: dataclasses.replace(found, status=RETIRED, share=0.0, pinned=[])}
    if isinstance(order, PromoteModel):
        rank = max((other.rank for other in versions.values()), default=0) + 1
        changes: Changes = {order.version: dataclasses.replace(found, status=SERVING, share=0.0, rank=rank)}
        if serving is not None:
            changes[serving] = dataclasses.replace(versions[serving], status=RETIRED)
        return changes
    if serving is None:
        raise ModelRefusedError(
            f"no version of the model {order.model!r} serves yet, so none can be beside it; send promote-model"
        )
    if isinstance(order, ShadowModel):
        return {order.version: dataclasses.replace(found, status=SHADOW, share=0.0)}
    others = (name for name, other in versions.items() if other.status == CANARY and name != order.version)
    canary = next(others, None)
    if canary is not None:
        raise ModelRefusedError(
            f"version {canary!r} is the canary of the model {order.model!r}; promote it or roll it back first"
        )
    return {order.version: dataclasses.replace(found, status=CANARY, share=order.share)}


def _remove(versions: Mapping[str, ModelVersion], order: RemoveModel) -> Changes:
    found = _known(versions, order)
    if found.pinned:
        raise ModelRefusedError(
            f"version {order.version!r} of the model {order.model!r} serves {len(found.pinned):,} pinned keys; "
            "retire it first"
        )
    if order.version == _spare(versions):
        raise ModelRefusedError(
            f"version {order.version!r} of the model {order.model!r} scores what the serving one cannot, and a "
            "rollback returns to it; remove it after another promotion"
        )
    return {order.version: None}


def _spare(versions: Mapping[str, ModelVersion]) -> str | None:
    """Return the version that scores when the serving one cannot."""
    serving = serving_version(versions)
    return None if serving is None else version_before(versions, serving)


def _roll_back(versions: Mapping[str, ModelVersion], order: RollBackModel) -> Changes:
    serving = serving_version(versions)
    name = serving if order.version is None else order.version
    found = None if name is None else versions.get(name)
    if name is None or found is None or found.status not in (SHADOW, CANARY, SERVING):
        what = (
            "no version serves"
            if name is None
            else f"version {name!r} neither serves nor scores beside the one that does"
        )
        raise ModelRefusedError(f"no version of the model {order.model!r} can be rolled back: {what}")
    if name != serving:
        return {name: dataclasses.replace(found, status=VALIDATED, share=0.0)}
    before = version_before(versions, name)
    if before is None:
        raise ModelRefusedError(
            f"no version of the model {order.model!r} has served before {name!r}; promote another one"
        )
    return {
        name: dataclasses.replace(found, status=RETIRED, rank=0, pinned=[]),
        before: dataclasses.replace(versions[before], status=SERVING, share=0.0),
    }


def _pin(versions: Mapping[str, ModelVersion], order: PinModel) -> Changes:
    if order.version is not None:
        _known(versions, order)
    keys = list(dict.fromkeys(map(key_text, order.keys)))
    changes = dict(_unpin(versions, frozenset(keys)))
    if order.version is None:
        return dict(changes)
    target = changes.get(order.version, versions[order.version])
    pinned = [*target.pinned, *keys]
    if len(pinned) > _MAX_PINNED:
        raise ModelRefusedError(
            f"version {order.version!r} of the model {order.model!r} would have {len(pinned):,} pinned keys; "
            f"{_MAX_PINNED:,} are possible. Use a canary with a share"
        )
    return {**changes, order.version: dataclasses.replace(target, pinned=pinned)}


def _unpin(versions: Mapping[str, ModelVersion], keys: frozenset[str]) -> Iterable[tuple[str, ModelVersion]]:
    """Yield the versions that lose some of the keys."""
    for name, found in versions.items():
        if not keys.isdisjoint(found.pinned):
            yield name, dataclasses.replace(found, pinned=[key for key in found.pinned if key not in keys])
