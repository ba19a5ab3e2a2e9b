"""Bounded plans: explain to people in how many micro-batches a bounded run reads its input."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.base.sizes import format_bytes, format_count
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import RECORDS_PER_BATCH, Binding, FilesBinding, KafkaBinding
from penstock.runtime.plan import wants_starts
from penstock.sources.file_source import FileLog
from penstock.streams.job_description import JobDescription

__all__ = ["explain_bounded"]

_NOT_BY_SPARK: Final = (
    "not as one batch of Spark's own: its sums of doubles, dead letters and null keys would be others"
)


def explain_bounded(job: JobDescription, bindings: Mapping[str, str]) -> str:
    """Return what a bounded run of a job from the start does with its input. `bindings` override the job's own.

    Raises BindingError if a binding is wrong, or its folder does not exist.
    """
    given = {**job.bound_by_default(), **bindings}
    counts: list[int] = []
    lines = []
    for source in job.graph.sources():
        role: Any = "control" if source.is_control else "data"
        uri = given.get(source.name)
        if uri is None:
            lines.append(f"{source.name}: is not bound")
            continue
        binding = parse_binding(source.name, uri, role)
        if isinstance(binding, FilesBinding):
            count, line = _of_files(binding)
            counts.append(count)
        else:
            line = _of_others(binding)
        lines.append(f"{source.name}: {line}")
    is_known = len(counts) == len(lines)
    number = max(counts, default=0)
    through = "through micro-batches"
    if is_known:
        through = "through 1 micro-batch" if number == 1 else f"through {number:,} micro-batches"
    last = ", and one at the end of event time" if wants_starts(job.graph) else ""
    if any(source.watermarks is not None for source in job.graph.sources()):
        lines.append(_late(number if is_known else None))
    lines.append(_NOT_BY_SPARK)
    return "\n".join([f"bounded run from the start: {through}{last}", *(f"   {line}" for line in lines)])


def _of_files(binding: FilesBinding) -> tuple[int, str]:
    """Return how many micro-batches the present files take, and the reason."""
    with tempfile.TemporaryDirectory(prefix="penstock-explain-") as folder:
        files = FileLog(binding, Path(folder) / "files")
        files.check()
        files.freeze()
        waiting = files.lag(0)
        count = position = 0
        while (end := files.latest(position, limited=True)) > position:
            count, position = count + 1, end
    most = [format_bytes(binding.max_bytes_per_batch)]
    if binding.max_files_per_batch is not None:
        most.insert(0, format_count(binding.max_files_per_batch, "files"))
    there = f"{format_count(waiting['files'], 'files')}, {format_bytes(waiting['bytes'])}"
    return count, f"{there}; at most {' and '.join(most)} in a micro-batch"


def _of_others(binding: Binding) -> str:
    if isinstance(binding, KafkaBinding):
        most = format_count(binding.max_records_per_batch or RECORDS_PER_BATCH, "records")
        return f"a topic; at most {most} in a micro-batch"
    return "what is there, as it comes"


def _late(number: int | None) -> str:
    late = "late are records that are behind the watermark of an earlier micro-batch"
    if number is None:
        return late
    return f"{late}; with one, none is" if number < 2 else late
