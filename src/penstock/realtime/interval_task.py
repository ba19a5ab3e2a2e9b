"""The task of an interval, as Spark starts it: it finds or launches the engine of its slot, and serves it the state."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from penstock.engine.slot import Slot
from penstock.realtime.inbox import PeerLostError
from penstock.realtime.messages import (
    Attend,
    Carry,
    Content,
    Failed,
    FromEngine,
    Launch,
    Outcome,
    Put,
    Read,
    ToTask,
    connect,
    receive,
    send,
)
from penstock.realtime.slot_engine import JobInRealTime, SlotEngine
from penstock.runtime.level import StoredStates
from penstock.state.kept_slots import SlotCache, kept_slots

__all__ = ["SlotFailedError", "run_interval"]

_CAUSE_FIRST_S: Final = 0.5

_from_coordinator: Final = msgspec.msgpack.Decoder(ToTask)
_from_engine: Final = msgspec.msgpack.Decoder(FromEngine)


class SlotFailedError(Exception):
    """The engine of the slot has failed; the message is its traceback."""


def run_interval(
    job: JobInRealTime,
    number: int,
    task: int,
    attempt: int,
    states: StoredStates | None,
    slot: Slot,
    cache: SlotCache = kept_slots,
) -> Iterator[pa.RecordBatch]:
    """Run the task of an interval, in Spark's numbering, and yield its reports.

    `states` are those of the slot; None without steps. `cache` has the tables that the worker keeps of slots.
    """
    try:
        address = _engine(job, number, task, attempt, slot, cache)
        with connect(address) as engine:
            send(engine, Carry(job.coordinator.secret, number))
            yield from _carry(engine, states)
    except (PeerLostError, OSError) as e:
        # Spark shows the error that comes first, and that of the other task is the cause.
        time.sleep(_CAUSE_FIRST_S)
        raise PeerLostError(str(e)) from e


def _engine(
    job: JobInRealTime, number: int, task: int, attempt: int, slot: Slot, cache: SlotCache
) -> tuple[str, int]:
    """Return the address of the slot's engine, which is launched here if it does not run yet."""
    place = job.coordinator
    with connect((place.host, place.port)) as coordinator:
        send(coordinator, Attend(place.secret, number, task))
        answer: ToTask = receive(coordinator, _from_coordinator)
    if not isinstance(answer, Launch):
        return answer.address
    engine = SlotEngine(job, task, slot, answer, number, attempt, cache)
    engine.start()
    return engine.address


def _carry(engine: socket.socket, states: StoredStates | None) -> Iterator[pa.RecordBatch]:
    """Read stored state for the engine, and at the end of the interval store what has changed."""
    while True:
        message: FromEngine = receive(engine, _from_engine)
        if isinstance(message, Read):
            assert states is not None
            found = states.entries(message.step_id).get(message.name)
            send(engine, Content(None if found is None else bytes(found)))
        elif isinstance(message, Put):
            assert states is not None
            entries = states.entries(message.step_id)
            if message.content is None:
                entries.remove(message.name)
            else:
                entries.put(message.name, message.content)
        elif isinstance(message, Outcome):
            yield from pa.ipc.open_stream(message.reports)
            return
        else:
            assert isinstance(message, Failed)
            raise SlotFailedError(message.error) if message.is_cause else PeerLostError(message.error)
