"""View resources: checkpoints, dead letters, settings, states and advice, as the service returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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

_MAX_RAW_BYTES: Final = 4096


class Advice(Resource):
    """Scaling advice for a job, as `penstock advise -o json` prints it."""

    has_policy: bool
    """Whether its definition has a scaling policy, which the advice follows."""
    advice: dict[str, Any]
    decision: dict[str, Any] | None
    """The decision that the policy would make now; null without a policy."""


class Checkpoint(Resource):
    """A retained committed micro-batch. The last three fields are null if its metrics are no longer kept."""

    batch: int
    committed_ms: int
    duration_s: float | None
    state_bytes: int | None
    """The size of the stored state of all steps."""
    keys: int | None
    """The number of keys of all steps."""


class Checkpoints(Resource):
    """The checkpoint of a job, and the micro-batches to which the job can go back, newest first."""

    lineage: str
    """The id of the checkpoint, the same for its whole life."""
    epoch: int
    """The number of times that a job was started on it."""
    parallelism: int
    key_groups: int
    retained_batches: int
    """The number of micro-batches that it can go back."""
    origin: Literal["empty", "savepoint", "dump", "rescale"]
    """The origin of its state."""
    origin_id: str
    """The id of the snapshot that its state began with; empty without one."""
    items: tuple[Checkpoint, ...]
    next: str | None
    """The value of `after` for the next page; null at the end."""


class DeadLetter(Resource):
    """A record that could not be processed."""

    at_ms: int
    """The time at which it was written."""
    batch: int | None
    """The micro-batch that wrote it; null for one in a topic."""
    reason: str
    stream: str
    step: str
    partition: str
    offset: int
    raw: str
    """The record as the source had it, truncated if long."""
    encoding: Literal["text", "base64"]
    """The encoding of `raw`."""
    raw_bytes: int
    """The size of the whole record."""


class Reason(Resource):
    """A reason why records could not be processed, with the number of listed dead letters that have it."""

    reason: str
    step: str
    stream: str
    count: int


class DeadLetters(Resource):
    """The newest dead letters, oldest first, and their reasons, most frequent first."""

    items: tuple[DeadLetter, ...]
    reasons: tuple[Reason, ...]


class Setting(Resource):
    """A setting of a job. Secrets are masked."""

    name: str
    value: Any
    default: Any
    is_default: bool


class JobConfig(Resource):
    """The settings with which a job runs."""

    definition: str
    """The id of its definition."""
    bindings: dict[str, str]
    limits: dict[str, dict[str, int]]
    """The largest part of each stream that one micro-batch reads, in records, files and bytes.

    Empty before the first start.
    """
    settings: tuple[Setting, ...]


class StateStep(Resource):
    """A step with its states and number of keys."""

    step: str
    keys: int
    """The number of its keys with state."""
    key: str
    """The type of its keys."""
    states: list[dict[str, str]]
    """The name, kind and type of each state."""


def dead_letters_of(found: Sequence[FoundLetter]) -> DeadLetters:
    """Return the resource of dead letters, with their reasons counted."""
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
    encoding, raw = format_record(letter.raw, _MAX_RAW_BYTES)
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
