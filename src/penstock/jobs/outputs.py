"""Outputs: check whether sinks hold micro-batches that the checkpoint does not know, and start new outputs if so.

An exactly-once sink knows micro-batches by their numbers, and skips those that it has. When a checkpoint has gone back,
the same numbers come again with other records, which the sink would drop.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.bindings.secrets import redact
from penstock.checkpoints.checkpoint import Checkpoint, Outputs
from penstock.checkpoints.plans import Plans
from penstock.errors import CheckpointError
from penstock.jobs.compile import CompiledJob
from penstock.jobs.events import RunEvents
from penstock.sinks.base import Sink
from penstock.streams.own_streams import RECEIPTS

__all__ = ["Held", "Position", "check_outputs", "list_held", "needs_new_outputs", "start_new_outputs"]


@dataclass(frozen=True)
class Held:
    """A sink, its URI if the user has bound it, and the newest micro-batch that it may hold at least a part of."""

    sink: str
    uri: str
    batch: int

    def __str__(self) -> str:
        where = f" ({redact(self.uri)})" if self.uri else ""
        return f"the sink {self.sink!r}{where} holds micro-batch {self.batch}"


@dataclass(frozen=True)
class Position:
    """The position of a checkpoint: the newest micro-batch that it knows, and the one that comes next.

    They are the same if a run was killed within that micro-batch.
    """

    checkpoint: str
    newest: int
    next: int


def check_outputs(
    bound: CompiledJob, checkpoint: Checkpoint, bindings: Mapping[str, str], new_outputs_from: int | None
) -> Outputs | None:
    """Return the new outputs that a job must start, or None if the present ones continue. Writes nothing.

    Raises CheckpointError when sinks hold what the checkpoint does not know, and the user has not requested new outputs
    from its next micro-batch on.
    """
    plans = Plans(checkpoint, bound.lineage)
    held = list_held(bound, checkpoint, bindings)
    next_batch = plans.newest + 1 if plans.pending is None else plans.pending
    if not needs_new_outputs(
        held, Position(str(checkpoint.folder), plans.newest, next_batch), new_outputs_from
    ):
        return None
    return Outputs(uuid.uuid4().hex[:12], next_batch)


def list_held(bound: CompiledJob, checkpoint: Checkpoint, bindings: Mapping[str, str]) -> list[Held]:
    """List the newest micro-batch in each exactly-once sink."""
    sinks: list[tuple[str, Sink | None]] = [(name, sink) for name, (sink, _, _) in bound.sinks.items()]
    return [
        Held(name, bindings.get(name, ""), sink.newest(bound.lineage.output_id, str(checkpoint.folder)))
        for name, sink in [*sinks, (RECEIPTS, bound.receipts.bound)]
        if sink is not None and sink.exactly_once
    ]


def needs_new_outputs(held: Sequence[Held], position: Position, wanted_from: int | None) -> bool:
    """Return whether the job must start new outputs. Raises CheckpointError if so, unless the user requests it.

    The user names the micro-batch, so this happens only once: when the job has continued, another one is next.
    """
    ahead = [one for one in held if one.batch > position.newest]
    if not ahead:
        return False
    if wanted_from == position.next:
        return True
    sinks = ", and ".join(map(str, ahead))
    known = f"no later one than {position.newest}" if position.newest >= 0 else "none"
    other = "" if wanted_from is None else f", and not {wanted_from}"
    raise CheckpointError(
        f"{sinks[0].upper()}{sinks[1:]} of this job, and the checkpoint {position.checkpoint} knows {known}: it has "
        "gone back, perhaps to an older copy. Exactly-once sinks would drop new records under the numbers that they "
        "have. Put back the newest copy of the checkpoint. Or start new outputs with --new-outputs-from "
        f"{position.next}{other}: nothing is dropped then, and what the checkpoint has forgotten is written twice."
    )


def start_new_outputs(
    bound: CompiledJob, outputs: Outputs, checkpoint: Checkpoint, events: RunEvents
) -> CompiledJob:
    """Durably give the job a new id in its sinks; return the job with that id."""
    details = {"id": outputs.id, "first_batch": outputs.first_batch}
    events.add("outputs-anew", details, batch=outputs.first_batch - 1)
    lineage = msgspec.structs.replace(bound.lineage, outputs=outputs)
    checkpoint.begin(lineage)
    receipts = bound.receipts.for_outputs(lineage.output_id)
    return dataclasses.replace(bound, lineage=lineage, receipts=receipts)
