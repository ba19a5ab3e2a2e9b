"""Transient fields: created once per worker, shared by the copies of a function, never sent or stored."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from domains import Counted, Reading
from encoded_commands import command_to, commands

import penstock as ps
from penstock.errors import JobDefinitionError, StateError
from penstock.testing.batch_runner import BatchRunner

MADE: list[dict[Any, Any]] = []


def make() -> dict[Any, Any]:
    MADE.append({})
    return MADE[-1]


class Caching(ps.ProcessFunction):
    cache = ps.TransientField(make)
    lock = ps.TransientField(threading.Lock)
    count = ps.ValueState(int)

    def process_record(self, reading: Reading, ctx: ps.Context) -> Iterator[Counted]:
        self.count.set((self.count.get() or 0) + 1)
        self.cache[ctx.key] = self.cache.get(ctx.key, 0) + 1
        with self.lock:
            yield Counted(ctx.key, self.cache[ctx.key])
        if ctx.key == 13:
            raise ValueError("thirteen")


class Closing(Caching):
    """Uses its cache once more before it is dropped."""

    def clear_cache(self) -> None:
        if self.cache.get(7):
            raise OSError("seven")


def started(function: ps.ProcessFunction, partitions: int = 2) -> BatchRunner:
    MADE.clear()
    job = ps.Job("caching")
    job.data_stream("readings", schema=Reading).key_by("room").process("step", function).sink_to("seen")
    return BatchRunner(job, parallelism=partitions)


def counts(job: BatchRunner, *keys: int) -> list[int]:
    result = job.run({"readings": [("r", [Reading(key) for key in keys])]})
    return [seen.count for seen in sorted(result.output("seen"), key=lambda seen: seen.key)]


def clear(job: BatchRunner, name: str = "a") -> str:
    return job.run(commands(command_to(None, "clear-cache", id=name))).receipts[-1].status


def test_a_worker_keeps_it_between_micro_batches() -> None:
    """It is created once for all slots and runs; a record that raises leaves its changes."""
    job = started(Caching())
    assert counts(job, 1, 2, 13) == [1, 1]
    assert counts(job, 1, 2) == [2, 2]
    assert len(MADE) == 1
    assert MADE[0] == {1: 2, 2: 2, 13: 1}


def test_it_stays_behind_when_the_function_travels() -> None:
    """Another worker creates its own; a copy in the same worker shares it."""
    function = Caching()
    function.cache[1] = 5
    assert copy.copy(function).cache == {1: 5}
    with function.lock:
        travelled = pickle.loads(pickle.dumps(function))
    assert travelled.cache == {}
    assert function.cache == {1: 5}


def test_clear_cache_drops_it() -> None:
    """A function with a transient field accepts the command; values cached afterwards are kept."""
    job = started(Caching())
    counts(job, 1)
    assert clear(job) == "APPLIED"
    assert counts(job, 1) == [1]
    assert counts(job, 1) == [2], "a cache is not cleared in every micro-batch from then on"
    assert clear(job, "b") == "APPLIED"
    assert counts(job, 1) == [1]


def test_it_is_there_for_clear_cache_and_dropped_whatever_happens() -> None:
    """The function may close what it holds; if that raises, the command is degraded."""
    job = started(Closing(), partitions=1)
    counts(job, 7)
    assert clear(job) == "DEGRADED"
    assert counts(job, 7) == [1]


def test_a_function_without_one_takes_no_clear_cache() -> None:
    """It is refused, as before."""

    class Plain(ps.ProcessFunction):
        def process_record(self, reading: Reading, ctx: ps.Context) -> None:
            pass

    job = ps.Job("plain")
    job.data_stream("readings", schema=Reading).key_by("room").process("step", Plain())
    assert clear(BatchRunner(job)) == "REJECTED"


def test_it_cannot_be_assigned() -> None:
    """Nor can it be declared anywhere but in the class."""
    with pytest.raises(StateError, match="'cache' is a transient field"):
        Caching().cache = {}

    class Late(ps.ProcessFunction):
        def __init__(self) -> None:
            self.names = ps.TransientField(dict)

        def process_record(self, reading: Reading, ctx: ps.Context) -> None:
            pass

    job = ps.Job("late")
    with pytest.raises(JobDefinitionError, match="'names' on the instance"):
        job.data_stream("readings", schema=Reading).key_by("room").process("step", Late())
    assert isinstance(Caching.cache, ps.TransientField)
