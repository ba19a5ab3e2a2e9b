"""Requests to runs whose manager shares only an object store with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from modelled_store import Fate, ModelledStore

from penstock.errors import CheckpointMissingError, ExternalSystemError
from penstock.jobs.requests import Answer, Request, Requests
from penstock.server.runs.lease_places import LeasePlace, leases_in
from penstock.server.runs.leases import Lease, LeaseKeeper, offer
from penstock.server.runs.processes import Ended
from penstock.server.runs.run_requests import RequestRelay, answer_of_run, post_to_run

RESCALE = Request(id="op-1-1", action="rescale", parallelism=3, run=1)
STOP = Request(id="pause-1", action="stop", run=1)
DONE = Answer(details={"before": 2, "after": 3})


def leases_over(objects: ModelledStore) -> LeasePlace:
    return leases_in(objects, "s3://bucket/rooms")


class Run:
    """A run with a working folder, which beats when a test says so."""

    def __init__(self, objects: ModelledStore, folder: Path) -> None:
        place = leases_over(objects)
        number = offer(place, Lease("job", 1, "north", "/home"))
        relay = RequestRelay(place, number, folder)
        self.told: list[str] = []
        self.keeper = LeaseKeeper(
            place, number, lambda: self.told.append("terminate"), lambda: None, relay.relay
        )
        self.requests = Requests(folder, 1)


def test_a_request_reaches_the_run_and_its_answer_the_manager(tmp_path: Path) -> None:
    """Once, however often it is sent; with the next beats."""
    objects = ModelledStore()
    run, elsewhere = Run(objects, tmp_path), leases_over(objects)
    for _ in range(2):
        post_to_run(elsewhere, "job", 1, RESCALE)
        run.keeper.beat()
    assert run.requests.next() == RESCALE
    assert run.requests.next() is None
    run.keeper.beat()
    assert answer_of_run(elsewhere, "job", 1, RESCALE.id) is None
    run.requests.answer(RESCALE, DONE)
    run.keeper.beat()
    assert answer_of_run(elsewhere, "job", 1, RESCALE.id) == DONE
    assert answer_of_run(elsewhere, "job", 2, RESCALE.id) is None
    assert run.told == []


def test_the_answer_of_a_run_that_ends_is_there_when_its_end_is(tmp_path: Path) -> None:
    """A stop is over only with what came of it."""
    objects = ModelledStore()
    run, elsewhere = Run(objects, tmp_path), leases_over(objects)
    post_to_run(elsewhere, "job", 1, STOP)
    with run.keeper:
        run.keeper.beat()
        assert run.requests.next() == STOP
        run.requests.answer(STOP, DONE)
        run.keeper.end(Ended("stopped", "a request"))
    assert answer_of_run(elsewhere, "job", 1, STOP.id) == DONE


def test_what_the_store_does_not_take_comes_with_a_later_beat(tmp_path: Path) -> None:
    fates: list[Fate] = []
    objects = ModelledStore(lambda: fates.pop(0) if fates else "well")
    run, elsewhere = Run(objects, tmp_path), leases_over(objects)
    post_to_run(elsewhere, "job", 1, RESCALE)
    run.keeper.beat()
    request = run.requests.next()
    assert request is not None
    run.requests.answer(request, DONE)
    fates[:] = ["well", "fails"]
    with pytest.raises(ExternalSystemError):
        run.keeper.beat()
    assert answer_of_run(elsewhere, "job", 1, RESCALE.id) is None
    run.keeper.beat()
    assert answer_of_run(elsewhere, "job", 1, RESCALE.id) == DONE


def test_a_run_without_a_lease_cannot_be_asked() -> None:
    with pytest.raises(CheckpointMissingError, match=r"Run 2 of the job job cannot be asked.*Cancel the job"):
        post_to_run(leases_over(ModelledStore()), "job", 2, STOP)


def test_what_was_asked_goes_with_the_lease(tmp_path: Path) -> None:
    objects = ModelledStore()
    run, elsewhere = Run(objects, tmp_path), leases_over(objects)
    post_to_run(elsewhere, "job", 1, RESCALE)
    run.keeper.beat()
    elsewhere.remove([1])
    assert objects.objects == {}
