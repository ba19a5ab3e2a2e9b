"""The log of starts: one position further at each start, and nothing to read."""

from __future__ import annotations

import pickle

from penstock.sources.starts import StartLog


def test_each_query_moves_it_once() -> None:
    log = StartLog()
    first, second = pickle.loads(pickle.dumps(log)), pickle.loads(pickle.dumps(log))
    assert [first.latest(0, limited=True), first.latest(1, limited=True)] == [1, 1]
    assert [second.latest(1, limited=True), second.latest(2, limited=True)] == [2, 2]
    assert first.splits(0, 1, 4) == []
    assert first.lag(1) == {}


def test_it_stands_still_in_a_bounded_run() -> None:
    log = StartLog()
    log.freeze()
    assert log.latest(3, limited=False) == 3
