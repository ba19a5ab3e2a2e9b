"""Leases: which run has a checkpoint, whether it lives, and how one on another machine is asked to end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from modelled_store import Fate, ModelledStore
from property_examples import examples
from threads_at_once import call_at_once

from penstock.errors import CheckpointMissingError, ExternalSystemError
from penstock.server.lifecycle.decisions import Driver, DriverState, EndKind
from penstock.server.runs import leases
from penstock.server.runs.lease_places import LeasePlace, leases_in, leases_of
from penstock.server.runs.leases import Lease, LeaseKeeper, LeaseWatch, lease_of, offer, revoke
from penstock.server.runs.processes import Ended

PATIENCE_S = 30.0


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture(params=["folder", "store"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> LeasePlace:
    """The leases of a checkpoint."""
    if request.param == "store":
        return leases_in(ModelledStore(), "s3://bucket/rooms")
    return leases_of(str(tmp_path / "checkpoint"))


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()


def lease(run: int = 1, job: str = "job") -> Lease:
    return Lease(job, run, "north", "/home")


def keeper(checkpoint: LeasePlace, number: int, told: list[str]) -> LeaseKeeper:
    """Its beats are called by the test."""
    return LeaseKeeper(checkpoint, number, lambda: told.append("terminate"), lambda: told.append("kill"))


def seen(driver: Driver) -> tuple[DriverState, EndKind | None]:
    return driver.state, None if driver.end is None else driver.end.kind


def test_leases_are_numbered_and_given_once(checkpoint: LeasePlace) -> None:
    """By run; the checkpoint's own folder is left alone."""
    assert [offer(checkpoint, lease(run)) for run in (1, 1, 2, 1)] == [1, 1, 2, 1]
    assert offer(checkpoint, lease(1, "other")) == 3
    assert lease_of(checkpoint, "job", 2) == lease(2)
    assert lease_of(checkpoint, "job", 3) is None


def test_the_folder_of_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    offer(leases_of(str(tmp_path / "checkpoint")), lease())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.leases"]


def test_two_at_once_get_different_numbers(checkpoint: LeasePlace) -> None:
    """Whoever comes second takes the next."""
    given: list[int] = []

    def ask(job: str) -> None:
        given.extend(offer(checkpoint, lease(run, job)) for run in range(10))

    call_at_once([partial(ask, job) for job in ("one", "two", "three")])
    assert len(set(given)) == 30


def test_old_leases_are_deleted(checkpoint: LeasePlace) -> None:
    """The newest ones stay, and numbers are not given again."""
    for run in range(1, 140):
        number = offer(checkpoint, lease(run))
        revoke(checkpoint, "job", run, kill=True)
        assert number == run
    assert checkpoint.numbers() == list(range(39, 140))
    assert [checkpoint.look(number)[1] for number in (1, 138)] == [[], ["kill"]]


def test_a_run_lives_while_its_lease_changes(checkpoint: LeasePlace, clock: Clock) -> None:
    """By the clock of the observer, from its first look; whatever the clocks of others say."""
    watch = LeaseWatch(PATIENCE_S, clock)
    run = keeper(checkpoint, offer(checkpoint, lease()), [])
    run.beat()
    for _ in range(3):
        clock.s += PATIENCE_S - 1
        run.beat()
        assert watch.look(checkpoint, "job", 1) == Driver(DriverState.ALIVE)
    run.working = True
    run.beat()
    assert watch.look(checkpoint, "job", 1) == Driver(DriverState.ALIVE, working=True)
    clock.s += PATIENCE_S
    assert seen(watch.look(checkpoint, "job", 1)) == (DriverState.ENDED, EndKind.KILLED)
    # It stood still only. As long as no other has its checkpoint it may go on.
    run.beat()
    assert watch.look(checkpoint, "job", 1).state is DriverState.ALIVE
    # Another who looks begins anew.
    clock.s += 10 * PATIENCE_S
    assert LeaseWatch(PATIENCE_S, clock).look(checkpoint, "job", 1).state is DriverState.ALIVE


def test_a_run_that_never_began_is_over_in_time(checkpoint: LeasePlace, clock: Clock) -> None:
    """Whoever was to start it has died; it does not count as a failure."""
    watch = LeaseWatch(PATIENCE_S, clock)
    offer(checkpoint, lease())
    assert watch.look(checkpoint, "job", 1).state is DriverState.ALIVE
    clock.s += PATIENCE_S
    assert seen(watch.look(checkpoint, "job", 1)) == (DriverState.ENDED, EndKind.VOIDED)


def test_nothing_is_known_where_the_checkpoint_is_not_shared(checkpoint: LeasePlace, clock: Clock) -> None:
    """However long one waits: another run there would begin from nothing."""
    watch = LeaseWatch(PATIENCE_S, clock)
    for _ in range(3):
        assert watch.look(checkpoint, "job", 1).state is DriverState.UNKNOWN
        clock.s += PATIENCE_S


@pytest.mark.parametrize("kind", ["finished", "stopped", "failed", "refused"])
def test_the_last_word_is_heard_elsewhere(checkpoint: LeasePlace, clock: Clock, kind: str) -> None:
    """At once."""
    run = keeper(checkpoint, offer(checkpoint, lease()), [])
    with run:
        run.end(Ended(kind, "so it is"))  # type: ignore[arg-type]
    found = LeaseWatch(PATIENCE_S, clock).look(checkpoint, "job", 1)
    assert seen(found) == (DriverState.ENDED, EndKind[kind.upper()])
    assert found.end is not None
    assert found.end.why == "so it is"


def test_a_run_that_has_lost_its_lease_ends(
    checkpoint: LeasePlace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked to end in order, once, and killed after a grace; the lease of the newer run is untouched."""
    told: list[str] = []
    old = keeper(checkpoint, offer(checkpoint, lease(1)), told)
    old.beat()
    newer = offer(checkpoint, lease(2))
    old.beat()
    old.beat()
    assert told == ["terminate"]
    watch = LeaseWatch(PATIENCE_S, clock)
    assert watch.look(checkpoint, "job", 1).state is DriverState.ENDED
    assert watch.look(checkpoint, "job", 2).state is DriverState.ALIVE
    assert lease_of(checkpoint, "job", 2) == lease(2)
    monkeypatch.setattr(leases, "GRACE_MS", -1)
    old.beat()
    assert told == ["terminate", "kill"]
    assert newer == 2


def test_a_later_run_does_not_count_anew(checkpoint: LeasePlace) -> None:
    """Where a share is not mounted nothing is made; the first run makes what it needs."""
    with pytest.raises(
        CheckpointMissingError, match=r"leases (next to it is missing|in it)\. (Mount|Correct)"
    ):
        offer(checkpoint, lease(2))
    assert checkpoint.numbers() == []
    assert offer(checkpoint, lease(1)) == 1
    assert offer(checkpoint, lease(2)) == 2


@pytest.mark.parametrize("late", [False, True])
def test_another_job_takes_the_checkpoint_over(checkpoint: LeasePlace, late: bool) -> None:
    """A run of the job before it ends, whether it works or begins only now."""
    told: list[str] = []
    offer(checkpoint, lease(1, "before"))
    number = offer(checkpoint, lease(7, "before"))
    old = keeper(checkpoint, number, told)
    if not late:
        old.beat()
    offer(checkpoint, lease(1, "after"))
    assert offer(checkpoint, lease(7, "before")) == number
    old.beat()
    assert told == ["terminate"]


def test_a_run_elsewhere_is_told_to_end(checkpoint: LeasePlace, clock: Clock) -> None:
    """In order, then at once, with a last word for those who wait."""
    told: list[str] = []
    run = keeper(checkpoint, offer(checkpoint, lease()), told)
    run.beat()
    revoke(checkpoint, "job", 2, kill=True)
    run.beat()
    assert told == []
    revoke(checkpoint, "job", 1, kill=False)
    run.beat()
    assert told == ["terminate"]
    revoke(checkpoint, "job", 1, kill=True)
    run.beat()
    assert told == ["terminate", "kill"]


@examples(60)
@given(st.lists(st.sampled_from(get_args(Fate)), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_a_number_on_a_store_belongs_to_one_run_whatever_becomes_of_requests(
    fates: list[Fate], turns: list[int]
) -> None:
    """Three managers begin runs of the same job; some requests fail, have lost their answer, or arrive late."""
    left = list(fates)
    store = ModelledStore(lambda: left.pop(0) if left else "well")
    given_to: dict[int, int] = {}
    for place, turn in enumerate([*turns, 0, 1, 2]):
        if place == len(turns):
            left.clear()
        with contextlib.suppress(ExternalSystemError):
            number = offer(leases_in(store, "s3://bucket/rooms"), lease(1, f"job-{turn}"))
            assert given_to.setdefault(number, turn) == turn
        store.arrive()
    for number, turn in given_to.items():
        found = leases_in(store, "s3://bucket/rooms").read(number)
        assert found is not None
        assert msgspec.json.decode(found, type=Lease).job == f"job-{turn}"
    assert set(given_to.values()) == {0, 1, 2}


def test_a_report_that_the_store_does_not_take_is_made_again(clock: Clock) -> None:
    """As where it is away for a moment: the run continues."""
    fates: list[Fate] = ["well"]
    place = leases_in(ModelledStore(lambda: fates[0]), "s3://bucket/rooms")
    place.beat_s = 0.01
    number = offer(place, lease())
    with keeper(place, number, []) as run:
        fates[0] = "fails"
        time.sleep(0.05)
        fates[0] = "well"
        before = lease_of(place, "job", 1)
        while lease_of(place, "job", 1) == before:
            time.sleep(0.01)
        run.end(Ended("stopped", "it was asked"))
    assert LeaseWatch(PATIENCE_S, clock).look(place, "job", 1).state is DriverState.ENDED
