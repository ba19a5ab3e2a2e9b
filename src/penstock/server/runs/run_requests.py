"""Run requests: the requests of a manager to a run, and the answers, even if they share only an object store.

A request is a file in the folder of the checkpoint. If that is the working folder of another machine, the request is
an object beside the lease of the run. The run's lease keeper brings it to its folder, and the answer back.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import CheckpointMissingError
from penstock.jobs.requests import Answer, Request, answer_to, post
from penstock.server.runs.lease_places import LeasePlace
from penstock.server.runs.leases import number_of_lease

__all__ = ["RequestRelay", "answer_of_run", "post_to_run"]

_REQUEST: Final = "request-"
_ANSWER: Final = "answer-"


def post_to_run(leases: LeasePlace, job: str, run: int, request: Request) -> None:
    """Send a request to a run on another machine, without waiting for the answer."""
    number = number_of_lease(leases, job, run)
    if number is None:
        raise CheckpointMissingError(
            f"Run {run} of the job {job} cannot be asked: it has no lease. Cancel the job instead."
        )
    leases.ask(number, f"{_REQUEST}{request.id}", msgspec.json.encode(request))


def answer_of_run(leases: LeasePlace, job: str, run: int, request_id: str) -> Answer | None:
    """Return the answer of a run on another machine, None if there is none yet."""
    number = number_of_lease(leases, job, run)
    content = None if number is None else leases.asked(number, f"{_ANSWER}{request_id}")
    return None if content is None else msgspec.json.decode(content, type=Answer)


class RequestRelay:
    """The way between the objects beside a run's lease and the folder in which the run works."""

    def __init__(self, leases: LeasePlace, number: int, folder: Path) -> None:
        self._leases: Final = leases
        self._number: Final = number
        self._folder: Final = folder
        self._brought: set[str] = set()
        self._answered: set[str] = set()

    def relay(self, asked: Collection[str] = ()) -> None:
        """Bring new requests of those asked for, and all new answers. Repeated after an error, it does the rest."""
        requests = {what.removeprefix(_REQUEST) for what in asked if what.startswith(_REQUEST)}
        for request_id in sorted(requests - self._brought):
            content = self._leases.asked(self._number, f"{_REQUEST}{request_id}")
            if content is not None:
                post(self._folder, msgspec.json.decode(content, type=Request))
                self._brought.add(request_id)
        for request_id in sorted(self._brought - self._answered):
            answer = answer_to(self._folder, request_id)
            if answer is not None:
                self._leases.ask(self._number, f"{_ANSWER}{request_id}", msgspec.json.encode(answer))
                self._answered.add(request_id)
