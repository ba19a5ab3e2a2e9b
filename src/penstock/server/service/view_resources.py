"""View resources: checkpoints, dead letters, settings, states and advice as the service returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.jobs.dead_letters import FoundLetter, format_record
from penstock.server.resource import Resource

__all__ = [
    "Advice",
    "Checkpoint",
    "Checkpoints",
    "DeadLetter",
    "DeadLetters",
    "JobConfig",
    "Reason",
    "Setting",
    "StateStep",
    "dead_letters_of",
]

_MOST_RAW_BYTES: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Advice(Resource):
    """What a job wants, as `penstock advise -o json` prints it."""

    has_policy: bool
    """Whether its definition has a scaling policy, which the advice follows."""
    advice: dict[str, Any]
    decision: dict[str, Any] | None
    """What the policy would decide now."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Resource):
    """A committed micro-batch that is kept. What its metrics would say is null when they are gone."""

    batch: int
    committed_ms: int
    duration_s: float | None
    state_bytes: int | None
    keys: int | None


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Resource):
    """The checkpoint of a job, and the micro-batches to which it can go back, newest first."""

    lineage: str
    """Identifies the checkpoint for its whole life."""
    epoch: int
    """How often a job was started on it."""
    parallelism: int
    key_groups: int
    retained_batches: int
    """To how many micro-batches it can go back."""
    origin: Literal["empty", "savepoint", "dump", "rescale"]
    """What the job began with."""
    origin_id: str
    items: tuple[Checkpoint, ...]
    next: str | None
    """The value of `after` for the next part."""


@dataclass(frozen=True, kw_only=True)
class DeadLetter(Resource):
    """A record that could not be processed."""

    at_ms: int
    """When it was written."""
    batch: int | None
    """By which micro-batch; null for one in a topic."""
    reason: str
    stream: str
    step: str
    partition: str
    offset: int
    raw: str
    """What the source had, cut where it is long."""
    encoding: Literal["text", "base64"]
    """How `raw` shows it."""
    raw_bytes: int
    """How long it is."""


@dataclass(frozen=True, kw_only=True)
class Reason(Resource):
    """Why records could not be processed, and how many of those that are listed."""

    reason: str
    step: str
    stream: str
    count: int


@dataclass(frozen=True, kw_only=True)
class DeadLetters(Resource):
    """The newest dead letters, oldest first, and their reasons, the most frequent first."""

    items: tuple[DeadLetter, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True)
class Setting(Resource):
    """A setting of a job. Secrets are masked."""

    name: str
    value: Any
    default: Any
    is_default: bool


@dataclass(frozen=True, kw_only=True)
class JobConfig(Resource):
    """The settings with which a job runs."""

    definition: str
    bindings: dict[str, str]
    limits: dict[str, dict[str, int]]
    """How much of each stream goes into one micro-batch at most, in records, files and bytes.

    Empty before the first start.
    """
    settings: tuple[Setting, ...]


@dataclass(frozen=True, kw_only=True)
class StateStep(Resource):
    """A step with its states, and how many keys it holds."""

    step: str
    keys: int
    key: str
    """The type of its keys."""
    states: list[dict[str, str]]


def dead_letters_of(found: Sequence[FoundLetter]) -> DeadLetters:
    """Dead letters with their reasons."""
    items = tuple(_dead_letter(one) for one in found)
    counts = Counter((one.reason, one.step, one.stream) for one in items)
    return DeadLetters(
        items=items,
        reasons=tuple(
            Reason(reason=reason, step=step, stream=stream, count=count)
            for (reason, step, stream), count in counts.most_common()
        ),
    )


def _dead_letter(found: FoundLetter) -> DeadLetter:
    letter = found.letter
    encoding, raw = format_record(letter.raw, _MOST_RAW_BYTES)
    return DeadLetter(
        at_ms=found.at_ms,
        batch=found.batch,
        reason=letter.reason,
        stream=letter.stream,
        step=letter.step,
        partition=letter.partition,
        offset=letter.offset,
        raw=raw,
        encoding=encoding,
        raw_bytes=len(letter.raw),
    )
