"""The task of an interval, as Spark starts it: it finds or starts the engine of its slot, and serves it the state."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Protocol

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
from penstock.realtime.slot_engine import CoordinatorAddress, JobInRealTime, SlotEngine
from penstock.runtime.level import StoredStates
from penstock.state.kept_slots import SlotCache, kept_slots

__all__ = ["SlotFailedError", "StartEngine", "run_interval", "start_engine"]

_CAUSE_FIRST_S: Final = 0.5
_ENGINE_GONE: Final = (
    "The process of a slot has ended without an error: it was killed, perhaps by the system because memory ran out. "
    "Start the job again; it continues from its last checkpoint"
)

_from_coordinator: Final = msgspec.msgpack.Decoder(ToTask)
_from_engine: Final = msgspec.msgpack.Decoder(FromEngine)


class SlotFailedError(Exception):
    """The engine of the slot has failed; the message is its traceback."""


class StartEngine(Protocol):
    """Starts the engine of a slot and returns its address."""

    def __call__(
        self, task: int, slot: Slot, launch: Launch, number: int, attempt: int, /
    ) -> tuple[str, int]:
        """Start the engine of the slot with a number, in an interval. The arguments are those of SlotEngine."""


def start_engine(
    job: JobInRealTime,
    task: int,
    slot: Slot,
    launch: Launch,
    number: int,
    attempt: int,
    cache: SlotCache = kept_slots,
) -> tuple[str, int]:
    """Start the engine of a slot in this process, and return its address."""
    engine = SlotEngine(job, task, slot, launch, number, attempt, cache)
    threading.Thread(target=engine.run, name=f"slot {task}", daemon=True).start()
    return engine.address


def run_interval(
    place: CoordinatorAddress,
    number: int,
    task: int,
    attempt: int,
    states: StoredStates | None,
    slot: Slot,
    start: StartEngine,
) -> Iterator[pa.RecordBatch]:
    """Run the task of an interval, in Spark's numbering, and yield its reports.

    `states` are those of the slot; None without steps. `start` starts the engine of the slot if it does not run yet.
    """
    try:
        address = _engine(place, number, task, attempt, slot, start)
        with connect(address) as engine:
            send(engine, Carry(place.secret, number))
            yield from _carry(engine, states)
    except (PeerLostError, OSError) as e:
        # Spark shows the error that comes first, and that of the other task is the cause.
        time.sleep(_CAUSE_FIRST_S)
        raise PeerLostError(str(e)) from e


def _engine(
    place: CoordinatorAddress, number: int, task: int, attempt: int, slot: Slot, start: StartEngine
) -> tuple[str, int]:
    """Return the address of the slot's engine."""
    with connect((place.host, place.port)) as coordinator:
        send(coordinator, Attend(place.secret, number, task))
        answer: ToTask = receive(coordinator, _from_coordinator)
    if not isinstance(answer, Launch):
        return answer.address
    return start(task, slot, answer, number, attempt)


def _carry(engine: socket.socket, states: StoredStates | None) -> Iterator[pa.RecordBatch]:
    """Read stored state for the engine, and at the end of the interval store what has changed."""
    while True:
        try:
            message: FromEngine = receive(engine, _from_engine)
        except ConnectionError as e:
            raise PeerLostError(_ENGINE_GONE) from e
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
