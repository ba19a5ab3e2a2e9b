"""Logs as sources of Spark: what is read again after a power loss is still there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.sources.base import Split
from penstock.sources.journal import JournalLog, JournalWriter
from penstock.spark.log_source import LogStart, _LogStreamReader


def test_a_journal_keeps_the_newest_micro_batch_that_is_done(tmp_path: Path) -> None:
    """That it is done may be taken back by a power loss until the next one is; of one before, that is on disk."""
    writer = JournalWriter(tmp_path, segment_bytes=1)
    ends = [writer.append([b"a"]) for _ in range(6)]
    writer.close()
    reader = _LogStreamReader(JournalLog(tmp_path), cast("Any", None), LogStart(0, 2, wakes=False))

    def kept(end: int) -> list[int]:
        reader.commit({"position": end})
        return sorted(int(path.stem) for path in tmp_path.glob("*.blocks"))

    assert kept(ends[1])[0] == 0
    assert kept(ends[2])[0] == ends[1]
    assert kept(ends[3])[0] == ends[2]


class _Ranges:
    """A log of two partitions, whose position is how far both are."""

    def decode(self, offset: dict[str, Any]) -> int:
        return int(offset["at"])

    def splits(self, start: int, end: int, parallelism: int) -> list[Split]:
        assert parallelism == 2
        return [Split(name, "", start, end) for name in ("0", "1")]


@pytest.mark.parametrize(("end", "tasks"), [(4, [["0", "1"]]), (5, [["0"], ["1"]])])
def test_few_records_are_read_by_one_task(end: int, tasks: list[list[str]]) -> None:
    """And one more by as many as the job has."""
    reader = _LogStreamReader(cast("Any", _Ranges()), cast("Any", None), LogStart({"at": 0}, 2, False, few=8))
    found = cast("list[Any]", list(reader.partitions({"at": 0}, {"at": end})))
    assert [[split.partition for shared in one.shares for split in shared] for one in found] == tasks


def test_each_task_of_a_topic_gets_all_shares() -> None:
    """It claims one of them when it knows its worker."""
    start = LogStart({"at": 0}, 2, wakes=False, bodies="folder", claims=True)
    reader = _LogStreamReader(cast("Any", _Ranges()), cast("Any", None), start)
    found = cast("list[Any]", list(reader.partitions({"at": 0}, {"at": 5})))
    assert [[[split.partition for split in shared] for shared in one.shares] for one in found] == [
        [["0"], ["1"]],
        [["0"], ["1"]],
    ]
