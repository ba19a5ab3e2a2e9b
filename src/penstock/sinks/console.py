"""Console sink: records as lines of JSON on standard output, after the name of the stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pyarrow as pa

from penstock.bindings.types import ConsoleBinding
from penstock.errors import ExternalSystemError
from penstock.records.json_lines import JsonLines
from penstock.records.types import RecordType
from penstock.sinks.base import SinkTask, TaskContext

__all__ = ["ConsoleSink"]


class ConsoleSink:
    """A sink that prints `heaters> {"sensor_id":1,...}` for each record. A replayed batch is printed again."""

    exactly_once = False
    commits_in_tasks = False

    def __init__(self, binding: ConsoleBinding) -> None:
        self._binding = binding

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # it keeps nothing
        """Return -1: the sink does not remember batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:
        """Do nothing: standard output is always there."""

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # all tasks are alike
        """Return a task that collects lines for the commit."""
        return _ConsoleTask(record_type)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:  # noqa: ARG002  # nothing to remember
        """Print the lines of all tasks. Raises ExternalSystemError when standard output is closed."""
        prompt = f"{self._binding.stream}> "
        lines = [prompt + line for message in messages for line in message.decode().split("\n")[:-1]]
        if not lines:
            return
        try:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
        except (BrokenPipeError, ValueError) as e:
            raise ExternalSystemError(
                f"Sink {self._binding.stream!r}: standard output is closed. Keep it open or use another sink."
            ) from e


class _ConsoleTask:
    """The collected lines of one task; the commit prints them."""

    def __init__(self, record_type: RecordType) -> None:
        self._rows = JsonLines(record_type)
        self._lines: list[bytes] = []

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # keys are not shown
        self._lines.append(self._rows.encode(batch))

    def finish(self) -> bytes:
        return b"".join(self._lines)

    def abort(self) -> None:
        self._lines.clear()
