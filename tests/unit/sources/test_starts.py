"""The log of starts: it advances by one at each start and once when time ends, but not in a bounded run."""

from __future__ import annotations

import pickle

from penstock.sources.starts import StartLog


def test_each_query_moves_it_once() -> None:
    log = StartLog()
    first, second = pickle.loads(pickle.dumps(log)), pickle.loads(pickle.dumps(log))
    assert [first.latest(0, limited=True), first.latest(2, limited=True)] == [2, 2]
    assert [second.latest(2, limited=True), second.latest(4, limited=True)] == [4, 4]
    assert first.splits(0, 2, 4) == []
    assert first.lag(2) == {}


def test_it_stands_still_in_a_bounded_run() -> None:
    log = StartLog()
    log.freeze()
    assert log.latest(4, limited=False) == 4


def test_an_end_is_read_once() -> None:
    """The position itself marks the end, so a replay of the micro-batch reads it again."""
    log = StartLog(ends=True)
    log.freeze()
    assert log.latest(4, limited=False) == 5
    (split,) = StartLog().splits(4, 5, 2)
    assert [len(chunk.offsets) for chunk in StartLog().read([split], None)] == [0]
    assert StartLog(ends=True).latest(5, limited=False) == 7
    assert StartLog().latest(5, limited=False) == 6
    assert StartLog().splits(5, 6, 2) == []
