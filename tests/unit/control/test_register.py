"""The register: ids are unique and versions never go back, in every slot, under repetition, reordering and
replay.
"""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from penstock.control.commands import Command, Target
from penstock.control.register import Register

START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
KEYS = range(4)
TARGETS = st.one_of(
    st.builds(Target, st.just("s"), key=st.sampled_from(KEYS)),
    st.builds(Target, st.just("s"), keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True)),
    st.builds(Target, st.just("s"), all=st.just(True)),
    st.builds(Target, st.just("s")),
    st.just(Target()),
)
COMMANDS = st.builds(
    Command,
    id=st.text("abcdefghij", min_size=1, max_size=1),
    kind=st.sampled_from(["set", "limit"]),
    target=TARGETS,
    version=st.none() | st.integers(0, 5),
    expires_at=st.none() | st.integers(0, 5).map(lambda hours: START + dt.timedelta(hours=hours)),
)
BATCHES = st.lists(st.lists(COMMANDS, max_size=6), max_size=5)


class Model:
    """The model, without slots: the newest version of every key."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.versions: dict[Any, int] = {}
        self.applied: list[tuple[str, Any]] = []

    def take(self, command: Command, now: dt.datetime) -> None:
        if command.id in self.ids:
            return
        self.ids.add(command.id)
        if command.expires_at is not None and command.expires_at <= now:
            return
        target, version = command.target, command.version
        if target.scope in ("step", "job"):
            if self._is_stale((command.kind, target.scope), version):
                return
            self.applied.append((command.id, target.scope))
            return
        if target.scope == "all" and self._is_stale((command.kind, "all"), version):
            return
        keys = KEYS if target.scope == "all" else [target.key] if target.scope == "key" else target.keys or []
        for key in keys:
            to_all = self.versions.get((command.kind, "all"), -1)
            own = self.versions.get((command.kind, key), -1)
            if version is None or version >= max(to_all, own):
                self.applied.append((command.id, key))
                if version is not None:
                    self.versions[command.kind, key] = version

    def _is_stale(self, place: Any, version: int | None) -> bool:
        if version is None:
            return False
        if version < self.versions.get(place, -1):
            return True
        self.versions[place] = version
        return False


def run_slot(
    register: Register, commands: list[Command], now: dt.datetime, mine: set[int]
) -> list[tuple[str, Any]]:
    """Return what one slot applies: each command once if it has no keys, else once for each of its keys in
    this slot.
    """
    applied: list[tuple[str, Any]] = []
    for command in commands:
        if register.admit(command, now) is not None:
            continue
        target = command.target
        if target.scope in ("step", "job"):
            applied.append((command.id, target.scope))
            continue
        keys = KEYS if target.scope == "all" else [target.key] if target.scope == "key" else target.keys or []
        for key in keys:
            if key in mine and register.stale_key(command, key) is None:
                register.note_key(command, key)
                applied.append((command.id, key))
    return applied


@examples(150)
@given(batches=BATCHES, crashes=st.lists(st.booleans(), min_size=5, max_size=5))
def test_slots_agree_with_the_model(batches: list[list[Command]], crashes: list[bool]) -> None:
    """Two slots hold half of the keys each; after a crash a micro-batch runs again from the last stored state."""
    slots = [{0, 1}, {2, 3}]
    stored: list[tuple[bytes | None, list[bytes]]] = [(None, []), (None, [])]
    model = Model()
    found: list[list[tuple[str, Any]]] = [[], []]
    for number, (commands, crash) in enumerate(zip(batches, crashes, strict=False)):
        now = START + dt.timedelta(hours=number)
        for command in commands:
            model.take(command, now)
        for slot, mine in enumerate(slots):
            register = Register(stored[slot][0], stored[slot][1])
            applied = run_slot(register, commands, now, mine)
            register.take_back()
            assert run_slot(register, commands, now, mine) == applied, "what is taken back was never there"
            if crash:
                register = Register(stored[slot][0], stored[slot][1])
                assert run_slot(register, commands, now, mine) == applied, "a replay decides alike"
            if (number + slot) % 2:
                register.settle()
                register.shrink()
                stored[slot] = (register.dump(), [])
            else:
                register.settle()
                noted = register.take_settled()
                stored[slot][1].extend([] if noted is None else [noted])
            assert not register.changed
            again = Register(stored[slot][0], stored[slot][1])
            assert again.dump() == copy.deepcopy(register).dump(), "a new worker knows what the old one does"
            found[slot] += applied
    together = [(c, k) for c, k in found[0] if k not in ("step", "job")] + found[1]
    assert sorted(together, key=repr) == sorted(model.applied, key=repr)
    for slot in found:
        wide = [pair for pair in slot if pair[1] in ("step", "job")]
        assert wide == [pair for pair in model.applied if pair[1] in ("step", "job")], (
            "every slot hears of these"
        )


def test_ids_are_kept_up_to_a_number() -> None:
    """The oldest ids are forgotten first, also over a reload."""
    register = Register(ids_kept=3)
    for name in "abcd":
        assert register.admit(Command(id=name, kind="k"), START) is None
    again = Register(register.dump(), ids_kept=3)
    assert again.dump() == register.dump()
    refused = again.admit(Command(id="b", kind="k"), START)
    assert refused is not None
    assert refused.duplicate
    assert again.admit(Command(id="a", kind="k"), START) is None


@examples(100)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=4), max_size=12),
    stores=st.lists(st.sampled_from(["nothing", "additions", "all"]), min_size=12, max_size=12),
)
def test_the_versions_of_the_newest_keys_are_kept(
    batches: list[list[tuple[int, int]]], stores: list[str]
) -> None:
    """This holds however and whenever the register is stored; a version for all keys counts for each and
    takes no room.
    """
    register, stored, later = Register(keys_kept=3), None, []
    known: dict[int, int] = {}
    number = 0
    for batch, what in zip(batches, stores, strict=False):
        for key, version in batch:
            number += 1
            command = Command(id=f"{number}", kind="k", target=Target("s", key=key), version=version)
            assert register.admit(command, START) is None
            if register.stale_key(command, key) is None:
                register.note_key(command, key)
                known.pop(key, None)
                known[key] = version
            else:
                assert version < known[key]
        register.settle()
        if what == "all":
            stored, later = register.dump(), []
        elif what == "additions" and (settled := register.take_settled()) is not None:
            later.append(settled)
        known = dict(list(known.items())[-3:])
        if what == "nothing":
            continue
        again = Register(stored, later, keys_kept=3)
        assert copy.deepcopy(again).dump() == copy.deepcopy(register).dump()
        assert dict(again._key_versions) == {("k", key): version for key, version in known.items()}


@examples(100)
@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=4), max_size=6))
def test_rounds_that_are_stored_together_are_as_if_stored_one_by_one(rounds: list[list[str]]) -> None:
    """This also holds for an id that is forgotten and comes again between two stores."""
    together, one_by_one, later = Register(ids_kept=3), Register(ids_kept=3), []
    for ids in rounds:
        for one in (together, one_by_one):
            one.mark_all_seen(ids)
            one.settle()
        later += [found for found in [one_by_one.take_settled()] if found is not None]
    settled = together.take_settled()
    read = Register(None, [] if settled is None else [settled], ids_kept=3)
    assert read.dump() == Register(None, later, ids_kept=3).dump() == one_by_one.dump()


def test_a_version_to_all_keys_takes_the_place_of_older_ones_of_single_keys() -> None:
    """The older versions are still refused."""
    register = Register()
    for key in range(3):
        command = Command(id=f"{key}", kind="k", target=Target("s", key=key), version=key)
        assert register.admit(command, START) is None
        register.note_key(command, key)
    to_all = Command(id="all", kind="k", target=Target("s", all=True), version=1)
    assert register.admit(to_all, START) is None
    register.settle()
    register.shrink()
    again = Register(register.dump())
    assert list(again._key_versions) == [("k", 2)]
    for key, refused in ((0, True), (1, True), (2, True)):
        old = Command(id=f"old-{key}", kind="k", target=Target("s", key=key), version=0)
        assert (again.stale_key(old, key) is not None) == refused
    same = Command(id="same", kind="k", target=Target("s", key=1), version=1)
    assert again.stale_key(same, 1) is None


def test_refusals_say_why() -> None:
    """Each refusal has a reason that an operator can read."""
    register = Register()
    assert register.admit(Command(id="a", kind="k", version=4), START) is None
    stale = register.admit(Command(id="b", kind="k", version=3), START)
    assert stale is not None
    assert stale.reason == "version 3 is stale: version 4 has been applied"
    expired = register.admit(Command(id="c", kind="k", expires_at=START), START)
    assert expired is not None
    assert expired.reason == "it expired at 2026-11-21T00:00:00+00:00"


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=4), max_size=4))
def test_many_ids_are_noted_as_one_by_one(batches: list[list[str]]) -> None:
    """Noting many ids at once equals noting them one by one, also with duplicates."""
    at_once, one_by_one = Register(ids_kept=4), Register(ids_kept=4)
    for number, ids in enumerate(batches):
        assert at_once.mark_all_seen(ids) == [one_by_one.mark_seen(one) for one in ids]
        if number % 2:
            assert at_once.settle() == one_by_one.settle()
            assert at_once.take_settled() == one_by_one.take_settled()
    assert at_once.dump() == one_by_one.dump()
