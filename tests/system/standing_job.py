"""The tally job with two sinks, which hangs at a chosen moment of a micro-batch, so that a test can kill it
there.

The variable PENSTOCK_TEST_STAND names a folder. A file in it named like a moment makes the job hang there:
`first` and `second` are after those sinks' part of the micro-batch; `first-0` is after partition 0 of a Kafka
sink, while others continue; `counts` is after everything that the driver writes before Spark commits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tally_job import Count, Hit

import penstock as ps
from penstock.checkpoints import checkpoint_files
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.sinks.file_sink import FilesSink
from penstock.sinks.kafka_sink import KafkaSink

FOLDER = "PENSTOCK_TEST_STAND"
STOOD = "stood"


job = ps.Job("standing")
tallies = job.data_stream("hits", schema=Hit).key_by("page").process("count", Count())
tallies.sink_to("first")
tallies.sink_to("second")


def stand_at(*moments: str) -> None:
    """Hang for ever, if one of the moments is requested."""
    folder = os.environ.get(FOLDER)
    if folder is not None and any((Path(folder) / moment).exists() for moment in moments):
        (Path(folder) / STOOD).touch()
        while True:
            time.sleep(60)


class StandingTask:
    """A task of a Kafka sink that may hang after it has finished."""

    def __init__(self, task: Any, sink: str, partition: int) -> None:
        self._task = task
        self._moments = (sink, f"{sink}-{partition}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def finish(self) -> bytes:
        """Finish, and then hang."""
        message: bytes = self._task.finish()
        stand_at(*self._moments)
        return message


def _make_standing() -> None:
    """Patch sinks and counts to hang, in the driver and in workers."""
    commit, task, save = FilesSink.commit, KafkaSink.task, Checkpoint.save

    def commit_and_stand(self: FilesSink, batch_id: int, messages: Sequence[bytes]) -> None:
        commit(self, batch_id, messages)
        stand_at(self._binding.stream)

    def standing_task(self: KafkaSink, context: Any, record_type: Any) -> Any:
        return StandingTask(task(self, context, record_type), self._binding.stream, context.partition)

    def save_and_stand(self: Checkpoint, name: str, content: Any) -> None:
        save(self, name, content)
        if name == checkpoint_files.COUNTS_FILE:
            stand_at("counts")

    FilesSink.commit = commit_and_stand  # type: ignore[method-assign]
    KafkaSink.task = standing_task  # type: ignore[method-assign]
    Checkpoint.save = save_and_stand  # type: ignore[method-assign]


if FOLDER in os.environ:
    _make_standing()
