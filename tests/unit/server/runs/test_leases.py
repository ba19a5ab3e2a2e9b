"""Leases: which run has a checkpoint, whether it lives, and how one on another machine is told to end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from threads_at_once import call_at_once

from penstock.errors import CheckpointMissingError
from penstock.server.lifecycle.decisions import Driver, DriverState, EndKind
from penstock.server.runs import leases
from penstock.server.runs.leases import Lease, LeaseKeeper, LeaseWatch, lease_of, offer, revoke
from penstock.server.runs.processes import Ended

PATIENCE_S = 30.0


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()


def lease(run: int = 1, job: str = "job") -> Lease:
    return Lease(job, run, "north", "/home")


def keeper(checkpoint: Path, number: int, told: list[str]) -> LeaseKeeper:
    """Its beats are called by the test."""
    return LeaseKeeper(checkpoint, number, lambda: told.append("terminate"), lambda: told.append("kill"))


def seen(driver: Driver) -> tuple[DriverState, EndKind | None]:
    return driver.state, None if driver.end is None else driver.end.kind


def test_leases_are_numbered_and_given_once(checkpoint: Path) -> None:
    """By run; the checkpoint's own folder is left alone."""
    assert [offer(checkpoint, lease(run)) for run in (1, 1, 2, 1)] == [1, 1, 2, 1]
    assert offer(checkpoint, lease(1, "other")) == 3
    assert lease_of(checkpoint, "job", 2) == lease(2)
    assert lease_of(checkpoint, "job", 3) is None
    assert not checkpoint.exists()


def test_two_at_once_get_different_numbers(checkpoint: Path) -> None:
    """Whoever comes second takes the next."""
    given: list[int] = []

    def ask(job: str) -> None:
        given.extend(offer(checkpoint, lease(run, job)) for run in range(10))

    call_at_once([partial(ask, job) for job in ("one", "two", "three")])
    assert len(set(given)) == 30


def test_old_leases_are_deleted(checkpoint: Path) -> None:
    """The newest ones stay, and numbers are not given again."""
    for run in range(1, 140):
        number = offer(checkpoint, lease(run))
        revoke(checkpoint, "job", run, kill=True)
        assert number == run
    assert len(list(checkpoint.with_name("checkpoint.leases").iterdir())) < 210


def test_a_run_lives_while_its_lease_changes(checkpoint: Path, clock: Clock) -> None:
    """By the clock of who looks, from the first look on; whatever the clocks of others say."""
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


def test_a_run_that_never_began_is_over_in_time(checkpoint: Path, clock: Clock) -> None:
    """Whoever was to start it has died; it does not count as a failure."""
    watch = LeaseWatch(PATIENCE_S, clock)
    offer(checkpoint, lease())
    assert watch.look(checkpoint, "job", 1).state is DriverState.ALIVE
    clock.s += PATIENCE_S
    assert seen(watch.look(checkpoint, "job", 1)) == (DriverState.ENDED, EndKind.VOIDED)


def test_nothing_is_known_where_the_checkpoint_is_not_shared(checkpoint: Path, clock: Clock) -> None:
    """However long one waits: another run there would begin from nothing."""
    watch = LeaseWatch(PATIENCE_S, clock)
    for _ in range(3):
        assert watch.look(checkpoint, "job", 1).state is DriverState.UNKNOWN
        clock.s += PATIENCE_S


@pytest.mark.parametrize("kind", ["finished", "stopped", "failed", "refused"])
def test_the_last_word_is_heard_elsewhere(checkpoint: Path, clock: Clock, kind: str) -> None:
    """At once."""
    run = keeper(checkpoint, offer(checkpoint, lease()), [])
    with run:
        run.end(Ended(kind, "so it is"))  # type: ignore[arg-type]
    found = LeaseWatch(PATIENCE_S, clock).look(checkpoint, "job", 1)
    assert seen(found) == (DriverState.ENDED, EndKind[kind.upper()])
    assert found.end is not None
    assert found.end.why == "so it is"


def test_a_run_that_has_lost_its_lease_ends(
    checkpoint: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to end in order, once, and killed after a grace; the lease of the newer run is untouched."""
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


def test_a_later_run_does_not_count_anew(checkpoint: Path) -> None:
    """Where a share is not mounted nothing is made; the first run makes what it needs."""
    with pytest.raises(
        CheckpointMissingError, match=r"\.leases next to it is missing. Mount the disk or share"
    ):
        offer(checkpoint, lease(2))
    assert not checkpoint.parent.exists() or list(checkpoint.parent.iterdir()) == []
    assert offer(checkpoint, lease(1)) == 1
    assert offer(checkpoint, lease(2)) == 2


@pytest.mark.parametrize("late", [False, True])
def test_another_job_takes_the_checkpoint_over(checkpoint: Path, late: bool) -> None:
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


def test_a_run_elsewhere_is_told_to_end(checkpoint: Path, clock: Clock) -> None:
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
