"""Outputs: whether sinks hold micro-batches that the checkpoint does not know, and what becomes of the outputs then.

A sink that is exactly once knows micro-batches by their numbers, and skips those that it has. When a checkpoint has
gone back, the same numbers come again with other records, and would be dropped.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.bindings.secrets import redacted
from penstock.checkpoints.checkpoint import Checkpoint, Outputs
from penstock.checkpoints.plans import Plans
from penstock.errors import CheckpointError
from penstock.jobs.compile import CompiledJob
from penstock.jobs.events import RunEvents
from penstock.sinks.base import Sink
from penstock.streams.graph import RECEIPTS

__all__ = ["Held", "Position", "begin_outputs_anew", "begins_anew", "checked_outputs", "held_outputs"]


@dataclass(frozen=True)
class Held:
    """A sink, with its URI when the user has bound it, and the newest micro-batch that it may hold a part of."""

    sink: str
    uri: str
    batch: int

    def __str__(self) -> str:
        where = f" ({redacted(self.uri)})" if self.uri else ""
        return f"the sink {self.sink!r}{where} holds micro-batch {self.batch}"


@dataclass(frozen=True)
class Position:
    """Where a checkpoint stands: the newest micro-batch that it knows, and the one that comes next.

    They are the same when a run was killed within it.
    """

    checkpoint: str
    newest: int
    next: int


def checked_outputs(
    bound: CompiledJob, checkpoint: Checkpoint, bindings: Mapping[str, str], new_outputs_from: int | None
) -> Outputs | None:
    """The outputs that a job begins anew, None when they go on. Writes nothing.

    Raises CheckpointError when sinks hold what the checkpoint does not know, and the user has not asked for new outputs
    from its next micro-batch on.
    """
    plans = Plans(checkpoint, bound.lineage)
    held = held_outputs(bound, checkpoint, bindings)
    next_batch = plans.newest + 1 if plans.pending is None else plans.pending
    if not begins_anew(held, Position(str(checkpoint.folder), plans.newest, next_batch), new_outputs_from):
        return None
    return Outputs(uuid.uuid4().hex[:12], next_batch)


def held_outputs(bound: CompiledJob, checkpoint: Checkpoint, bindings: Mapping[str, str]) -> list[Held]:
    """What the sinks that are exactly once hold."""
    sinks: list[tuple[str, Sink | None]] = [(name, sink) for name, (sink, _, _) in bound.sinks.items()]
    return [
        Held(name, bindings.get(name, ""), sink.newest(bound.lineage.output_id, str(checkpoint.folder)))
        for name, sink in [*sinks, (RECEIPTS, bound.receipts.bound)]
        if sink is not None and sink.exactly_once
    ]


def begins_anew(held: Sequence[Held], position: Position, wanted_from: int | None) -> bool:
    """Whether outputs begin anew. CheckpointError when they would have to, and nobody wants it.

    That the user names the micro-batch makes it happen once: when the job has gone on, another one is next.
    """
    ahead = [one for one in held if one.batch > position.newest]
    if not ahead:
        return False
    if wanted_from == position.next:
        return True
    told = ", and ".join(map(str, ahead))
    known = f"no later one than {position.newest}" if position.newest >= 0 else "none"
    other = "" if wanted_from is None else f", and not {wanted_from}"
    raise CheckpointError(
        f"{told[0].upper()}{told[1:]} of this job, and the checkpoint {position.checkpoint} knows {known}: it has gone "
        "back, perhaps to an older copy. Sinks that are exactly once would drop what comes under the numbers that they "
        "have. Put back the newest copy of the checkpoint. Or let the outputs begin anew with --new-outputs-from "
        f"{position.next}{other}: nothing is dropped then, and what the checkpoint has forgotten comes twice."
    )


def begin_outputs_anew(
    bound: CompiledJob, outputs: Outputs, checkpoint: Checkpoint, events: RunEvents
) -> CompiledJob:
    """Let sinks know a job under another id from now on, durably; gives the job as it is bound then."""
    details = {"id": outputs.id, "first_batch": outputs.first_batch}
    events.add("outputs-anew", details, batch=outputs.first_batch - 1)
    lineage = msgspec.structs.replace(bound.lineage, outputs=outputs)
    checkpoint.begin(lineage)
    receipts = bound.receipts.for_outputs(lineage.output_id)
    return dataclasses.replace(bound, lineage=lineage, receipts=receipts)
