"""Claimed shares: tasks divide what a micro-batch reads so that each worker goes on where it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.errors import ExternalSystemError
from penstock.spark import claimed_shares
from penstock.spark.claimed_shares import claim_share

SHARES = ["first", "second", "third"]
Task = Callable[..., str]


@pytest.fixture
def run_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task of a stage: its number, and how near its worker is to each share."""

    def run(number: int, nearness: Mapping[str, int], stage: int = 7, folder: Path = tmp_path) -> str:
        task = SimpleNamespace(stageId=lambda: stage, partitionId=lambda: number)
        monkeypatch.setattr(claimed_shares, "TaskContext", SimpleNamespace(get=lambda: task))
        return claim_share(str(folder), "hits/of a day", SHARES, [nearness.get(share, 0) for share in SHARES])

    return run


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_each_worker_goes_on_where_it_was(run_task: Task, order: tuple[int, ...]) -> None:
    """Whichever task it gets, and in whichever order they begin."""
    found = {worker: run_task(task, {SHARES[worker]: 1}) for task, worker in enumerate(order)}
    assert found == dict(enumerate(SHARES))


@pytest.mark.parametrize("near", [{}, {"second": 2}, {"first": 1, "second": 2, "third": 3}])
def test_each_share_is_read_once(run_task: Task, near: Mapping[str, int]) -> None:
    """Also when workers are near to the same one, or to none."""
    found = [run_task(number, near) for number in range(3)]
    assert sorted(found) == SHARES
    assert found[0] == max(SHARES, key=lambda share: (near.get(share, 0), -SHARES.index(share)))


def test_a_repeated_task_reads_the_same_again(run_task: Task) -> None:
    """Also in another worker, since the other tasks have the rest."""
    first = [run_task(number, {"third": 1}) for number in range(3)]
    assert [run_task(number, {"second": 5}) for number in range(3)] == first


def test_stages_divide_anew(run_task: Task) -> None:
    """The next micro-batch is another stage."""
    assert run_task(0, {"third": 1}) == "third"
    assert run_task(1, {"third": 1}, 8) == "third"


def test_an_error_says_where_room_is_missing(run_task: Task, tmp_path: Path) -> None:
    """Tasks cannot divide the stream otherwise."""
    with pytest.raises(ExternalSystemError, match=r"stream 'hits/of a day' .*spark\.local\.dir=PATH"):
        run_task(0, {}, folder=tmp_path / "missing")
