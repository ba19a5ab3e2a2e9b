"""The inbox of a slot: who wakes whom."""

from __future__ import annotations

import resource
import threading
import time

import pytest
from waiting import await_true

from penstock.realtime.inbox import Delivery, Inbox
from penstock.realtime.intake import Intake
from penstock.runtime.packed_rows import PackedRow

_TURNS = 200


@pytest.mark.skipif(
    not hasattr(resource, "RUSAGE_THREAD"), reason="this system does not count a thread's waits"
)
def test_a_reader_that_takes_its_own_deliveries_leaves_the_slot_asleep() -> None:
    inbox = Inbox(Intake(1 << 20), 0)
    waits: list[int] = []

    def wait() -> None:
        waits.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw)
        inbox.await_any(None, until_woken=True)
        waits.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw)

    slot = threading.Thread(target=wait)
    slot.start()
    await_true(lambda: waits, "the slot does not wait")
    for _ in range(_TURNS):
        inbox.put(Delivery("0/readings", 0, 0, []), wakes=False)
        assert len(inbox.take()) == 1
        # Long enough for a thread that is woken to look, and wait again.
        time.sleep(0.0005)
    inbox.wake()
    slot.join()
    assert waits[1] - waits[0] < _TURNS / 10


def test_a_reader_that_waits_for_room_goes_on_when_the_slot_has_taken() -> None:
    inbox = Inbox(Intake(1), 0)
    # Far more than may wait.
    inbox.put(Delivery("0/readings", 0, 0, [PackedRow("step", 0, 0, "", 0, b"x" * 1000)]))
    put = threading.Event()

    def add() -> None:
        inbox.put(Delivery("0/readings", 0, 0, []), waits=True)
        put.set()

    reader = threading.Thread(target=add)
    reader.start()
    assert not put.wait(0.05)
    inbox.take()
    assert put.wait(10)
    reader.join()
