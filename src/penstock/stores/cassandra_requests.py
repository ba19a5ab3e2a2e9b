"""Cassandra requests: many at once, each answered once, and no more of them begun while the servers take none."""

from __future__ import annotations

import functools
import queue
from collections.abc import Sequence
from typing import Any, Final

from penstock.stores.cassandra_clients import is_passing

__all__ = ["send_requests"]


def send_requests(
    session: Any, requests: Sequence[tuple[Any, Sequence[Any]]], at_once: int
) -> tuple[dict[int, BaseException], int]:
    """Send requests, each a statement and its values, in any order; wait for the answers.

    Returns the errors of those that have failed, by their number, and how many were begun: after an error of the
    servers no more are, since each would wait as long for an error.

    The client's `execute_concurrent` begins each request in the answer to another one, and so ends with a
    `RecursionError` when all of them fail at once, as they do while no server is there.
    """
    answers: Final[queue.SimpleQueue[tuple[int, BaseException | None]]] = queue.SimpleQueue()
    failed: dict[int, BaseException] = {}
    waiting: set[int] = set()
    begun, is_away = 0, False
    while waiting or (begun < len(requests) and not is_away):
        while len(waiting) < at_once and begun < len(requests) and not is_away:
            waiting.add(begun)
            _begin(session, requests[begun], begun, answers)
            begun += 1
            # With a server that is not there the answer comes at once.
            if not answers.empty():
                break
        number, error = answers.get()
        # The client may answer a request that was too slow once more.
        if number not in waiting:
            continue
        waiting.remove(number)
        if error is not None:
            failed[number] = error
            is_away = is_away or is_passing(error)
    return failed, begun


def _begin(
    session: Any, request: tuple[Any, Sequence[Any]], number: int, answers: queue.SimpleQueue[Any]
) -> None:
    try:
        future = session.execute_async(*request)
    except Exception as e:  # what the values of a record do not have, the client raises at once
        answers.put((number, e))
        return
    future.add_callbacks(
        functools.partial(_answered, answers, number), functools.partial(_refused, answers, number)
    )


def _answered(answers: queue.SimpleQueue[Any], number: int, _: Any) -> None:
    answers.put((number, None))


def _refused(answers: queue.SimpleQueue[Any], number: int, error: BaseException) -> None:
    answers.put((number, error))
