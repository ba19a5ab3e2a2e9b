"""Requests to Cassandra: each is answered once, and servers that are away are not asked thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut, UnresolvableContactPoints
from cassandra.cluster import NoHostAvailable

from penstock.bindings.parse import parse_binding
from penstock.bindings.versioned_types import CassandraBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.stores.cassandra_clients import as_external
from penstock.stores.cassandra_requests import send_requests


class Answer:
    """The future of a request that has these answers at once."""

    def __init__(self, *answers: BaseException | None) -> None:
        self._answers = answers

    def add_callbacks(
        self, callback: Callable[[Any], None], errback: Callable[[BaseException], None]
    ) -> None:
        for answer in self._answers:
            if answer is None:
                callback(None)
            else:
                errback(answer)


class Session:
    """A session that answers the requests of each number so; it counts them."""

    def __init__(self, answers: Callable[[int], Sequence[BaseException | None]]) -> None:
        self._answers = answers
        self.asked = 0

    def execute_async(self, statement: str, values: Sequence[int]) -> Answer:
        self.asked += 1
        (number,) = values
        if number < 0:
            raise TypeError("not of this type")
        return Answer(*self._answers(number))


def requests(count: int) -> list[tuple[str, tuple[int]]]:
    return [("insert", (number,)) for number in range(count)]


def test_servers_that_are_away_are_asked_a_few_times() -> None:
    """Not once for each of many records, each of which would wait for its time."""
    error = NoHostAvailable("nobody", {})
    session = Session(lambda _: [error])
    failed, begun = send_requests(session, requests(5_000), 128)
    assert (failed, begun, session.asked) == ({0: error}, 1, 1)


def test_what_is_refused_stops_nothing() -> None:
    """Neither by the servers nor by the client."""
    bad = InvalidRequest("no")
    session = Session(lambda number: [bad if number % 100 == 7 else None])
    failed, begun = send_requests(session, [*requests(1_000), ("insert", (-1,))], 16)
    assert (len(failed), begun) == (11, 1_001)
    assert isinstance(failed[1_000], TypeError)


def test_a_second_answer_is_nothing() -> None:
    """The client gives one when what was too slow is refused later."""
    slow = OperationTimedOut()
    session = Session(lambda number: [slow, InvalidRequest("late")] if number == 2 else [None, None])
    failed, begun = send_requests(session, requests(3), 1)
    assert (failed, begun) == ({2: slow}, 3)


@pytest.mark.parametrize(
    "error", [NoHostAvailable("Unable to connect to any servers", ["db1"]), UnresolvableContactPoints({})]
)
def test_what_the_client_says_without_reasons_is_a_sentence(error: Exception) -> None:
    """For servers in no wanted data center, and for names without addresses."""
    binding = parse_binding("latest", "cassandra://db1:9042/plant/latest", "sink")
    assert isinstance(binding, CassandraBinding)
    with pytest.raises(ExternalSystemError, match="db1:9042 cannot be reached"), as_external(binding):
        raise error
    with pytest.raises(BindingError, match="does not answer with TLS"), as_external(binding):
        raise OSError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
