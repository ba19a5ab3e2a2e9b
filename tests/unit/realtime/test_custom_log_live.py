"""A custom log in real time: intervals read it, and a lost interval is repeated identically."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from domains import PassOn, Reading
from live_runner import LiveRunner

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PythonBinding
from penstock.connectors import RecordLog
from penstock.connectors.custom_class import bind_class
from penstock.connectors.custom_log import open_custom_log


class Rooms(RecordLog):
    """Two partitions that grow with the size of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ends(self) -> Mapping[str, int]:
        size = self._path.stat().st_size
        return {"left": size, "right": 2 * size}

    def read(self, partition: str, start: int, end: int) -> Iterable[tuple[int, Mapping[str, int]]]:
        return ((at, {"room": at, "value": len(partition)}) for at in range(start, end))


def test_a_lost_interval_is_repeated_and_the_next_goes_on(tmp_path: Path) -> None:
    """The repeated interval reads each partition up to the recorded positions, though the log has grown since."""
    path = tmp_path / "size"
    path.write_bytes(b"x" * 20)
    binding = parse_binding("readings", f"python:{__name__}:Rooms?path={path}", "data")
    assert isinstance(binding, PythonBinding)
    job = ps.Job("pass", key_groups=4)
    readings = job.data_stream("readings", schema=Reading).key_by("room")
    readings.process("pass", PassOn(), output=Reading).sink_to("seen")
    live = LiveRunner(job, tmp_path / "live", 2, drains=True)

    def rooms(commits: bool) -> list[tuple[int, int]]:
        # A driver opens its own log, which has not just polled the ends of the partitions.
        log: Any = open_custom_log(bind_class(binding, is_sink=False), tmp_path / "begins")
        # The runner ends an interval once its own logs are read. It cannot see this log, so the test drains
        # it.
        log.records, log.read_end = [], -1
        live.logs["readings"] = log
        with live:
            return sorted((one.value, one.room) for one in live.run(commits=commits).output("seen"))

    wanted = [*((4, room) for room in range(20)), *((5, room) for room in range(40))]
    assert rooms(commits=False) == wanted
    path.write_bytes(b"x" * 30)
    assert rooms(commits=True) == wanted
    assert rooms(commits=True) == [
        *((4, room) for room in range(20, 30)),
        *((5, room) for room in range(40, 60)),
    ]
