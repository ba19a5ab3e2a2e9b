"""Brokers that record: each change is an operation in the disk's list, and requests may meet faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from broker_model import Brokers, Change, failed
from confluent_kafka import KafkaError
from disk_tree import Op
from recording_disk import RecordingDisk

__all__ = ["RecordingBrokers", "Refusal", "RefusalKind", "Wish", "brokers_after"]

RefusalKind = Literal["away", "moving", "answer lost", "request lost", "fenced"]

# The time of an undisturbed request.
_REQUEST_S = 0.001


@dataclass
class Refusal:
    """A fault of the brokers, from their request number `at` on.

    `away`: nobody answers for some seconds; `moving`: the coordinators of transactions and groups do not.
    Once only: `answer lost` carries a change out and `request lost` does not, and the client times out;
    `fenced` lets another producer take over the transactional id before the change.
    """

    kind: RefusalKind
    at: int
    seconds: float = 0.0
    until_s: float | None = None
    met: int = 0

    def __str__(self) -> str:
        for_s = f" for {self.seconds:g} s" if self.seconds else ""
        return f"brokers: {self.kind}{for_s} from request {self.at} on"


Wish = Literal["waits", "at once"]
"""What a client does when a coordinator moves: librdkafka asks again for some requests, and not for others."""


class RecordingBrokers:
    """The brokers that clients talk to. Time passes by waiting requests, and by `sleep`."""

    def __init__(self, disk: RecordingDisk) -> None:
        self._disk = disk
        self.state = Brokers()
        self.base = Brokers()
        self.refusals: list[Refusal] = []
        self.requests = 0

    def begin(self, state: Brokers) -> None:
        """Record anew, from the brokers' present state."""
        self.state = state
        self.base = state.copy()

    def forget(self) -> None:
        """Start with healthy, empty brokers."""
        self.refusals, self.requests = [], 0
        self.begin(Brokers())

    # Stands for the module `time`.

    def monotonic(self) -> float:
        return self.state.now_s

    def sleep(self, seconds: float) -> None:
        self.state.pass_time(self.state.now_s + seconds)

    def ask(self, timeout_s: float, *, coordinator: Wish | None = None) -> None:
        """Make a request that changes nothing; raise KafkaException if it gets no answer."""
        self._disk._check()
        self.requests += 1
        self.sleep(_REQUEST_S)
        refusal = self._refusal()
        if refusal is None or refusal.until_s is None:
            return
        if refusal.kind == "moving":
            if coordinator is None:
                return
            refusal.met += 1
            if coordinator == "at once":
                raise failed(KafkaError.NOT_COORDINATOR, "Not coordinator")
        refusal.met += 1
        if refusal.until_s - self.state.now_s <= timeout_s:
            self.state.pass_time(refusal.until_s)
            return
        self.sleep(timeout_s)
        code = KafkaError._TRANSPORT if refusal.kind == "away" else KafkaError._TIMED_OUT
        raise failed(code, "the brokers do not answer")

    @property
    def refused(self) -> int:
        """How many requests met a fault."""
        return sum(refusal.met for refusal in self.refusals)

    def _refusal(self) -> Refusal | None:
        """Return the fault that a read request meets."""
        for refusal in self.refusals:
            if refusal.kind not in ("away", "moving") or refusal.at > self.requests:
                continue
            if refusal.until_s is None:
                refusal.until_s = self.state.now_s + refusal.seconds
            if self.state.now_s < refusal.until_s:
                return refusal
        return None

    def change(self, change: Change, timeout_s: float, *, coordinator: Wish | None = None) -> None:
        """Request a change; raise KafkaException if it is refused, or its outcome is unknown."""
        self.ask(timeout_s, coordinator=coordinator)
        one = self._one_time(change)
        if one == "fenced":
            name = change.name.split(" ")[0]
            self._do(Change("init", name=name, count=60))
        if one == "request lost":
            self.sleep(timeout_s)
            raise failed(KafkaError._TIMED_OUT, "no answer in time")
        self._do(change)
        if one == "answer lost" and (timeout_s or change.kind != "append"):
            # Messages are retried and deduplicated by sequence number, so they are there once.
            self.sleep(timeout_s)
            raise failed(KafkaError._TIMED_OUT, "no answer in time")

    def _one_time(self, change: Change) -> RefusalKind | None:
        for refusal in self.refusals:
            if refusal.kind in ("away", "moving") or refusal.met or refusal.at > self.requests:
                continue
            if refusal.kind == "fenced" and (change.epoch < 0 or change.kind == "init"):
                continue
            refusal.met += 1
            return refusal.kind
        return None

    def _do(self, change: Change) -> None:
        change = change._replace(at_s=self.state.now_s)
        self.state.check(change)
        self._disk._record(Op("broker", path=str(change), note=change))
        self.state.apply(change)

    def do_durably(self, change: Change) -> None:
        """Make a change by an outsider, who is never interrupted."""
        with self._disk.durably():
            self._do(change)


def brokers_after(base: Brokers, ops: Sequence[Op], at: int, *, outlived: bool = False) -> Brokers:
    """Return the brokers after the first operations; `outlived` by workers that finish their transactions."""
    state = base.copy()
    for op in ops[:at]:
        if op.kind == "broker":
            state.apply(op.note)
    waiting = {name for name, owner in state.owners.items() if owner.transaction} if outlived else set()
    for op in ops[at:]:
        name = op.note.name.split(" ")[0] if op.kind == "broker" else ""
        if name in waiting:
            state.apply(op.note)
            if not state.owners[name].transaction:
                waiting.discard(name)
    return state
