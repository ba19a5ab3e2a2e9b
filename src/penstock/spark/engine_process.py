"""The process of an engine, apart from those of Spark's tasks: it has an interpreter and a priority of its own.

A task asks the fork server of this machine for it, if there is one, and lives on beside it.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from penstock.engine.slot import Slot
from penstock.realtime.inbox import PeerLostError
from penstock.realtime.interval_task import SlotFailedError, start_engine
from penstock.realtime.messages import Attached, Failed, Launch, receive, send
from penstock.realtime.slot_engine import JobInRealTime, SlotEngine
from penstock.spark.lazy_pickle import Sealed
from penstock.spark.startup.fork_client import ADDRESS, request_fork
from penstock.state.kept_slots import kept_slots

__all__ = ["engines_live_apart", "start_engine_apart"]


class _Order(msgspec.Struct):
    """What an engine is started with: where it finds modules, and the arguments of `_engine`, pickled by the task."""

    path: list[str]
    arguments: bytes


_Started: TypeAlias = Attached | Failed

_from_task: Final = msgspec.msgpack.Decoder(_Order)
_from_engine: Final = msgspec.msgpack.Decoder(_Started)

_engines: Final[dict[socket.socket, socket.socket]] = {}
"""The engines of this process: the fork server's connection of each, which the server closes when it ends, and ours."""


def engines_live_apart() -> bool:
    """Return whether this machine has a fork server, and so engines processes of their own."""
    return ADDRESS in os.environ


def start_engine_apart(
    job: Sealed[JobInRealTime], task: int, slot: Slot, launch: Launch, number: int, attempt: int
) -> tuple[str, int]:
    """Start the engine of a slot in a process of its own, and return its address.

    Without a fork server, the engine lives in this process. Raises SlotFailedError with the error of an engine that
    does not start, and PeerLostError or OSError when another process has ended.
    """
    if not engines_live_apart():
        return start_engine(job.open(), task, slot, launch, number, attempt)
    mine, its = socket.socketpair()
    with its:
        link = request_fork([__name__], (its.fileno(), 1, 2))
    for ended in select.select(_engines, [], [], 0)[0]:
        _engines.pop(ended).close()
        ended.close()
    _engines[link] = mine
    send(mine, _Order(sys.path, pickle.dumps((job, task, slot, launch, number, attempt))))
    answer: _Started = receive(mine, _from_engine)
    if isinstance(answer, Failed):
        raise SlotFailedError(answer.error) if answer.is_cause else PeerLostError(answer.error)
    return answer.address


def main() -> None:
    """Start the engine that a task has ordered, and run it until it ends, at the latest with the task's process."""
    link = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    order: _Order = receive(link, _from_task)
    sys.path[:] = order.path
    try:
        engine = _engine(*pickle.loads(order.arguments))
    except (PeerLostError, OSError) as e:
        send(link, Failed(str(e), is_cause=False))
        return
    except BaseException:  # whatever it is, the task reports it
        send(link, Failed(traceback.format_exc(), is_cause=True))
        return
    send(link, Attached(engine.address))
    threading.Thread(target=_end_with_task, args=(link,), daemon=True).start()
    engine.run()


def _engine(
    job: Sealed[JobInRealTime], task: int, slot: Slot, launch: Launch, number: int, attempt: int
) -> SlotEngine:
    return SlotEngine(job.open(), task, slot, launch, number, attempt, kept_slots)


def _end_with_task(link: socket.socket) -> None:
    """End this process when that of the task ends, even while a function of the job runs."""
    link.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
