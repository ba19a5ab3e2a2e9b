"""Linger: while many records arrive, a slot waits briefly for the readers that send them; otherwise nothing
waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Set as AbstractSet

import pytest

from penstock.realtime.inbox import Delivery, Inbox
from penstock.realtime.intake import Intake
from penstock.realtime.linger import Linger

INTERVAL = 3
READERS = ("0/readings", "1/readings")
READING = {*READERS, "0/settings", "2/readings"}


class Waits(Inbox):
    """An inbox that receives nothing; time passes while a slot waits."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(Intake(1 << 20), INTERVAL)
        self.now = now
        self.waited_for: list[set[str]] = []

    def wait_for_all(self, senders: AbstractSet[str], timeout_s: float) -> None:
        """Note for whom a slot waits."""
        self.waited_for.append(set(senders))
        self.now[0] += timeout_s


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """An inbox with a clock that only waiting advances."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return Waits(now)


def test_few_records_wait_for_nothing(waits: Waits) -> None:
    """Records that come one by one are processed at once."""
    linger = Linger()
    for _ in range(10):
        linger.note(READERS[0], 1)
        linger.wait(waits, READING)
        linger.begin()
    assert not waits.waited_for


def test_a_slot_waits_for_readers_of_many_records_until_some_time_after_its_last_round(waits: Waits) -> None:
    """The deadline counts from the last round, however long that took; readers with few records are not
    waited for.
    """
    linger = Linger()
    linger.begin()
    for reader in READERS:
        linger.note(reader, 100)
    linger.note("0/settings", 2)
    waits.now[0] += 0.001
    linger.wait(waits, READING)
    assert waits.waited_for == [set(READERS)]
    apart_s = waits.now[0] - 1000.0
    assert 0.002 <= apart_s <= 0.010
    linger.begin()
    waits.now[0] += 0.040
    linger.wait(waits, READING)
    assert len(waits.waited_for) == 1, "the round took longer than that"
    linger.begin()
    linger.wait(waits, READING - {READERS[0]})
    assert waits.waited_for[1:] == [{READERS[1]}], "the other has ended the interval"


def test_it_ends_with_the_many_records(waits: Waits) -> None:
    """After a while with fewer records waiting stops."""
    linger = Linger()
    for reader in READERS:
        linger.note(reader, 100)
    waits.now[0] += 0.045
    linger.note(READERS[1], 50)
    linger.begin()
    waits.now[0] += 0.010
    linger.begin()
    linger.wait(waits, READING)
    assert waits.waited_for == [{READERS[1]}]
    waits.now[0] += 1.0
    linger.begin()
    linger.note(READERS[0], 2)
    linger.wait(waits, READING)
    assert len(waits.waited_for) == 1


def _delivery(sender: str, interval: int = INTERVAL) -> Delivery:
    return Delivery(sender, interval, 1, [])


def test_the_wait_ends_when_the_last_of_the_senders_has_sent() -> None:
    """Records of other readers, or for the next interval, do not end it."""
    inbox = Inbox(Intake(1 << 20), INTERVAL)
    inbox.put(_delivery(READERS[0]))
    inbox.put(_delivery(READERS[1], INTERVAL + 1))
    inbox.wait_for_all({READERS[0]}, 3600.0)
    begun_s = time.monotonic()
    inbox.wait_for_all(set(READERS), 0.05)
    assert time.monotonic() - begun_s >= 0.05
    waiting = threading.Thread(target=inbox.wait_for_all, args=(set(READERS), 3600.0))
    waiting.start()
    inbox.put(_delivery("slot/1"))
    inbox.put(_delivery(READERS[1]))
    waiting.join(10.0)
    assert not waiting.is_alive()
    assert [one.sender for one in inbox.take()] == [READERS[0], "slot/1", READERS[1]]


def test_an_error_ends_the_wait_and_is_raised_when_the_slot_takes() -> None:
    """A slot whose peer is gone does not wait for it."""
    inbox = Inbox(Intake(1 << 20), INTERVAL)
    inbox.fail(ConnectionError("gone"))
    inbox.wait_for_all(set(READERS), 3600.0)
    with pytest.raises(ConnectionError):
        inbox.take()
