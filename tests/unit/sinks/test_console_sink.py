"""The console sink prints a batch's records in order."""

from __future__ import annotations

import io
import sys

import pyarrow as pa
import pytest

from penstock.bindings.types import ConsoleBinding
from penstock.errors import ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.sinks.console import ConsoleSink

COMMAND = record_type("sensor_id INT, command STRING")


def message(sink: ConsoleSink, *sensors: int) -> bytes:
    task = sink.task(TaskContext(0, 0, 0, "one"), COMMAND)
    for sensor in sensors:
        columns = [pa.array([sensor], pa.int32()), pa.array(["ON\n\u00e9"])]
        task.write(pa.RecordBatch.from_arrays(columns, schema=COMMAND.schema), None)
    return task.finish()


def test_records_are_printed_behind_the_name_of_the_stream(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per record, in the order of the partitions, printed at the batch's commit."""
    sink = ConsoleSink(ConsoleBinding("heaters", "console:"))
    sink.prepare("one", "")
    messages = [message(sink, 1, 2), message(sink), message(sink, 3)]
    assert capsys.readouterr().out == ""
    sink.commit(0, messages)
    assert capsys.readouterr().out == "".join(
        f'heaters> {{"sensor_id":{sensor},"command":"ON\\n\u00e9"}}\n' for sensor in (1, 2, 3)
    )


def test_a_batch_that_is_committed_again_is_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A crash between the sink's commit and Spark's repeats lines, but loses none."""
    for _ in range(2):
        sink = ConsoleSink(ConsoleBinding("heaters", "console:"))
        sink.prepare("one", "")
        assert sink.newest("one", "") == -1
        sink.commit(7, [message(sink, 1)])
    assert capsys.readouterr().out == 'heaters> {"sensor_id":1,"command":"ON\\n\u00e9"}\n' * 2


def test_a_closed_output_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`penstock run ... | head` ends with a clear message."""
    sink = ConsoleSink(ConsoleBinding("heaters", "console:"))
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    sink.commit(0, [b""])
    with pytest.raises(ExternalSystemError, match="'heaters': standard output is closed"):
        sink.commit(0, [message(sink, 1)])
