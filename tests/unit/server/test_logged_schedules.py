"""Any schedule of servers on one object store, with requests that are lost, late or repeated, and servers that sleep.

The reference is plain Python: what was accepted, refused, or left unknown, and when each call began and ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeAlias, get_args

import pytest
from empty_stores import connect_to_empty
from hypothesis import given
from hypothesis import strategies as st
from modelled_store import Fate, ModelledStore
from property_examples import examples

from penstock.errors import LeadershipLostError, StoreError
from penstock.server.store import row_view, view_folder
from penstock.server.store.change_log import ChangeLog
from penstock.server.store.logged_transactions import LoggedTransactions
from penstock.server.store.store import Store

SERVERS: Final = 3
EVERY: Final = 2
LEASE_S: Final = 10

Act: TypeAlias = tuple[Any, ...]


class Link:
    """The way of one server to the object store, at which it may fall asleep while others act."""

    def __init__(self, objects: ModelledStore) -> None:
        self._objects = objects
        self.wakes: Callable[[], None] | None = None
        self.requests_until_sleep = 0

    def _pass(self) -> None:
        if self.wakes is not None:
            if self.requests_until_sleep:
                self.requests_until_sleep -= 1
            else:
                wakes, self.wakes = self.wakes, None
                wakes()

    def create(self, name: str, content: bytes) -> bool:
        self._pass()
        return self._objects.create(name, content)

    def put(self, name: str, content: IO[bytes]) -> None:
        self._pass()
        self._objects.put(name, content)

    def find(self, name: str) -> bytes | None:
        self._pass()
        return self._objects.find(name)

    def holds(self, name: str) -> bool:
        self._pass()
        return self._objects.holds(name)

    def remove(self, names: Sequence[str]) -> None:
        # One after the other, as it may be seen.
        for name in names:
            self._pass()
            self._objects.remove([name])

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        self._pass()
        return self._objects.names(folder, after)


@dataclass
class Call:
    """An event that a server was to write: its name and epoch, its interval, and what was said of it."""

    name: str
    epoch: int | None
    begun: int
    ended: int = 0
    outcome: str = "unknown"


@dataclass
class World:
    """Servers, their requests, and what was seen."""

    objects: ModelledStore
    now_s: float = 0.0
    steps: int = 0
    calls: list[Call] = field(default_factory=list)
    reads: list[tuple[int, list[str]]] = field(default_factory=list)
    holders: dict[int, tuple[int, int]] = field(default_factory=dict)
    renewed_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lives = [0] * SERVERS
        self.links: list[Link] = []
        self.stores: list[Store | None] = []
        self.epochs: list[int | None] = [None] * SERVERS
        self.busy: set[int] = set()
        for _ in range(SERVERS):
            self.links.append(Link(self.objects))
            self.stores.append(None)

    def act(self, act: Act) -> None:
        kind, *arguments = act
        if kind == "tick":
            self.now_s += arguments[0]
        elif kind == "arrive":
            self.objects.arrive()
        elif arguments[0] not in self.busy:
            self.busy.add(arguments[0])
            try:
                getattr(self, kind)(*arguments)
            finally:
                self.busy.discard(arguments[0])

    def step(self) -> int:
        self.steps += 1
        return self.steps

    def store(self, number: int) -> Store:
        found = self.stores[number]
        if found is None:
            log = ChangeLog(self.links[number], "s3://bucket/server", EVERY)
            found = self.stores[number] = Store(LoggedTransactions(log, lambda: self.now_s), lambda: 1)
        return found

    # What a server does

    def add(self, number: int) -> None:
        self._write(number, None)

    def add_some(self, number: int, count: int) -> None:
        for _ in range(count):
            self._write(number, None)

    def add_as_leader(self, number: int) -> None:
        if (epoch := self.epochs[number]) is not None:
            self._write(number, epoch)

    def _write(self, number: int, epoch: int | None) -> None:
        call = Call(f"{len(self.calls)}", epoch, self.step())
        self.calls.append(call)
        try:
            if epoch is None:
                self.store(number).add_event(None, call.name)
            else:
                self.store(number).add_event_of_leader(epoch, "job", "manager", call.name, {})
            call.outcome = "accepted"
        except LeadershipLostError:
            call.outcome = "refused"
        except StoreError:
            pass
        call.ended = self.step()

    def lead(self, number: int) -> None:
        begun_s, holder = self.now_s, (number, self.lives[number])
        try:
            epoch = self.store(number).lead(f"{holder}", LEASE_S * 1000)
        except StoreError:
            return
        self.epochs[number] = epoch
        if epoch is None:
            return
        assert self.holders.setdefault(epoch, holder) == holder, "one epoch for two"
        for other, renewed_s in self.renewed_s.items():
            if self.holders[other] != holder and other < epoch:
                assert self.now_s - renewed_s >= LEASE_S, "its lease was not over"
        self.renewed_s[epoch] = max(begun_s, self.renewed_s.get(epoch, begun_s))

    def read(self, number: int) -> None:
        begun = self.step()
        try:
            self.reads.append((begun, [event.what for event in self.store(number).events()]))
        except StoreError:
            return

    def restart(self, number: int) -> None:
        if (store := self.stores[number]) is not None:
            store.close()
        self.stores[number] = self.epochs[number] = None
        self.lives[number] += 1

    def sleep(self, number: int, requests: int, act: Act, meanwhile: Sequence[Act]) -> None:
        """Do something, and stand still in the midst of it, while others do something."""
        link = self.links[number]
        link.requests_until_sleep = requests
        link.wakes = lambda: [self.act(one) for one in meanwhile] and None
        kind, *arguments = act
        getattr(self, kind)(number, *arguments)
        link.wakes = None

    # What must hold

    def check(self) -> None:
        self.objects.arrive()
        self.objects._fate = lambda: "well"
        last = Store(LoggedTransactions(ChangeLog(self.objects, "s3://bucket/server", EVERY)))
        final = [event.what for event in last.events()]
        last.close()
        for number in range(SERVERS):
            assert [event.what for event in self.store(number).events()] == final
            self.restart(number)
        by_name = {call.name: call for call in self.calls}
        assert len(set(final)) == len(final)
        for call in self.calls:
            assert call.outcome != "accepted" or call.name in final, "an accepted one is lost"
            assert call.outcome != "refused" or call.name not in final, "a refused one counts"
        found = [by_name[name] for name in final]
        for place, call in enumerate(found):
            for later in found[place + 1 :]:
                if later.outcome == call.outcome == "accepted":
                    assert call.begun < later.ended, "an earlier one comes behind a later one"
        epochs = [call.epoch for call in found if call.epoch is not None]
        assert epochs == sorted(epochs), "two leaders wrote by turns"
        for begun, seen in self.reads:
            assert seen == final[: len(seen)]
            before = {call.name for call in self.calls if call.outcome == "accepted" and call.ended < begun}
            assert before <= set(seen), "a read did not see what was written before it"


servers = st.integers(0, SERVERS - 1)
kinds = st.sampled_from(["lead", "add_as_leader", "lead", "add_as_leader", "add", "read", "restart"])
simple = st.one_of(
    st.tuples(kinds, servers),
    st.tuples(st.just("add_some"), servers, st.integers(2, 3 * EVERY)),
    st.tuples(st.just("tick"), st.sampled_from([LEASE_S / 3, LEASE_S, 2 * LEASE_S])),
    st.tuples(st.just("arrive")),
)
asleep = st.tuples(
    st.just("sleep"),
    servers,
    st.integers(0, 12),
    st.tuples(st.sampled_from(["add_as_leader", "lead", "add", "read"])),
    st.lists(simple, min_size=1, max_size=8),
)
schedules = st.lists(st.one_of(simple, simple, asleep), min_size=5, max_size=20)
fates = st.lists(st.sampled_from(["well", *get_args(Fate)]), max_size=60)


@examples(40)
@given(schedules, fates)
def test_transactions_have_one_order_and_one_leader_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[Act], fates: list[Fate]
) -> None:
    """No accepted one is lost, no refused one counts, no read is old, and leaders do not write by turns."""
    coming = iter(fates)
    world = World(ModelledStore(lambda: next(coming, "well")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_view, "connect", connect_to_empty)
        patch.setattr(view_folder.tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
        for act in schedule:
            world.act(act)
        world.check()
