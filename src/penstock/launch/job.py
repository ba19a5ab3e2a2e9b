"""The job that users define, and run from Python."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.errors import BindingError, JobDefinitionError
from penstock.streams.graph import ProcessNode, TransformNode
from penstock.streams.job_description import JobDescription
from penstock.streams.own_streams import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.jobs.settings import RunSettings
    from penstock.launch.job_run import Bound, JobRun, RunResult
    from penstock.sql.job_planner import SqlResult
    from penstock.streams.stream import DataStream

__all__ = ["Job"]

_OWN: Final = ("bindings", "checkpoint", "bounded")


class Job(JobDescription):
    """A streaming job: its data streams, control streams, steps and sinks, and methods to run it.

    >>> job = Job("temperature-control")
    >>> readings = job.data_stream("readings", schema="sensor_id INT, temperature DOUBLE")

    Args:
        name: the name of the job; letters, digits, dots, dashes and underscores.
        key_groups: the number of key groups over which keyed state is spread, from 1 to 32768. It is fixed for the
            life of the state, and is the maximum useful parallelism.
        event_time: the default event time of data streams that declare none: the name of a field, which applies to
            streams whose schema has it, or `ps.INGESTION_TIME` for all.
        watermarks: the default watermarks of data streams that have an event time field and declare no watermarks.

    """

    def run(
        self,
        bindings: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | Path | None = None,
        bounded: bool = True,
        **settings: Any,
    ) -> RunResult:
        """Run the job until its input ends, and return the result.

        Args:
            bindings: the binding of each stream and sink, by name. A stream can be bound to a URI, a list of records
                (objects of its class, or dicts), a pandas, Polars or Arrow table, or an iterator. A sink can be bound
                to a URI. A sink that is left out is collected, and `RunResult.output` returns its records.
            checkpoint: the folder for progress and state. None is a temporary folder, which is removed with the result.
                A list or table is the whole stream from its beginning, so an interrupted run resumes where it was.
            bounded: process the available input and finish.
            settings: further fields of `RunSettings`, such as `parallelism=4` or `strict=True`.

        Raises:
            PenstockError: the run is refused or fails; the class of the error says which.

        """
        with self.start(bindings, checkpoint=checkpoint, bounded=bounded, **settings) as run:
            return run.wait()

    def start(
        self,
        bindings: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | Path | None = None,
        bounded: bool = False,
        **settings: Any,
    ) -> JobRun:
        """Start the job in this process, and return the run once it is ready for its first micro-batch.

        Streams that `bindings` leaves out take the records of `JobRun.send`. Use the run in a `with` statement, or stop
        it. The arguments are those of `run`, except that `bounded` is False by default.

        Raises:
            PenstockError: the run is refused or fails; the class of the error says which.

        """
        from penstock.jobs.runner import JobRunner
        from penstock.launch.job_run import JobRun

        temporary: tempfile.TemporaryDirectory[str] | None = None
        if checkpoint is None:
            temporary = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
            checkpoint = Path(temporary.name) / "checkpoint"
        if is_stored(checkpoint):
            raise JobDefinitionError(
                f"A run in this process needs a folder for its checkpoint, and {checkpoint} is on an object store. "
                "Start the job with penstock run --checkpoint."
            )
        folder = Path(checkpoint).expanduser().absolute()
        bound, uris = self._bind(bindings or {}, folder, temporary, bounded=bounded)
        checked = _settings({**settings, "bindings": uris, "checkpoint": str(folder), "bounded": bounded})
        run = JobRun(JobRunner(self, checked, self._code()), bound)
        run.begin()
        return run

    def sql(
        self,
        text: str,
        *,
        tables: Mapping[str, DataStream[Any]] | None = None,
        functions: Mapping[str, Any] | None = None,
    ) -> SqlResult:
        """Describe the streams, views, queries and inserts of a SQL text. docs/sql.md has the language.

        >>> job = Job("rooms")
        >>> readings = job.data_stream("readings", schema="room STRING, celsius DOUBLE")
        >>> warm = job.sql("SELECT room, celsius * 1.8 + 32 AS fahrenheit FROM readings WHERE celsius > 30")
        >>> warm.stream.record_type
        Record(room: string, fahrenheit: double)

        Args:
            text: one or more statements, with semicolons between them. They may read the data streams of the job.
            tables: further streams that the text may read, by name.
            functions: functions that expressions may call, by name: annotated functions of values, a `SqlFunction`, or
                aggregate functions.

        Raises:
            ExpressionError: the text cannot be read, or does not fit the streams; the message has the position. The job
                is then as it was before.

        """
        from penstock.sql.job_planner import SqlOptions, describe_sql

        return describe_sql(self, text, SqlOptions(tables or {}, functions or {}))

    def explain(self) -> str:
        """Return the streams, steps and sinks of the job, and the state that each step keeps, a line each.

        >>> job = Job("rooms")
        >>> readings = job.data_stream("readings", schema="room STRING, celsius DOUBLE")
        >>> readings.where("celsius > 30", name="warm").sink_to("alarms")
        >>> print(job.explain())
        1. data stream readings (room STRING, celsius DOUBLE)
        2. where warm of 1: celsius > 30
        3. sink alarms of 2
        """
        from penstock.sql.explanation import explain

        return explain(self)

    def _code(self) -> dict[str, Path]:
        """Return the user's modules that the workers need, by their paths below a folder of the import path."""
        from penstock.jobs.job_code import find_loaded_modules

        nodes = self.graph.nodes.values()
        functions = [node.function for node in nodes if isinstance(node, ProcessNode | TransformNode)]
        kinds = [*(source.record_type for source in self.graph.sources()), *self.graph.lookups.values()]
        classes = [kind.python_class for kind in kinds]
        return find_loaded_modules([*functions, *self.called_functions, *classes])

    def _bind(
        self, given: Mapping[str, Any], checkpoint: Path, temporary: object, *, bounded: bool
    ) -> tuple[Bound, dict[str, str]]:
        """Return the bindings of the run to Python objects, and the URI of each stream and sink."""
        from penstock.launch.collected_outputs import CollectedOutputs
        from penstock.launch.job_run import Bound
        from penstock.launch.stream_inputs import IteratorFeed, StreamInput, is_sequence

        given = self.bound_by_default() | dict(given)
        uris = {name: uri for name, uri in given.items() if isinstance(uri, str)}
        collected = {s.name: s.record_type for s in self.graph.sinks() if given.get(s.name) is None}
        dead_letters = None if DEAD_LETTERS in given else checkpoint / DEAD_LETTERS
        outputs = CollectedOutputs(collected, checkpoint, dead_letters, temporary)
        bound = Bound(checkpoint, {}, {}, {}, [], outputs)
        for source in self.graph.sources():
            records = given.get(source.name)
            if isinstance(records, str):
                continue
            if records is None and bounded and not source.is_control:
                raise BindingError(
                    f"The data stream {source.name!r} has no binding, and a bounded run would end at once. Bind it to "
                    f"a URI, records, a table or an iterator: bindings={{{source.name!r}: ...}}."
                )
            one = bound.inputs[source.name] = StreamInput(source.name, source.record_type, checkpoint)
            if is_sequence(records):
                bound.sequences[source.name] = records
            elif isinstance(records, Iterable) and bounded:
                bound.iterators[source.name] = records
            elif isinstance(records, Iterable):
                bound.feeds.append(IteratorFeed(one, records, source.name))
            elif records is not None:
                raise BindingError(
                    f"The stream {source.name!r} is bound to {type(records).__name__!r}. Bind it to a URI, a list of "
                    "records, a table or an iterator."
                )
        uris |= {name: one.uri for name, one in bound.inputs.items()}
        uris |= {name: outputs.uri(name) for name in collected}
        not_uris = sorted(name for name in given if name not in uris)
        if not_uris:
            raise BindingError(
                f"{not_uris[0]!r} is not a stream of the job {self.name!r}, so it can only be bound to a URI; its "
                f"streams are {', '.join(source.name for source in self.graph.sources())}."
            )
        return bound, uris


def _settings(values: dict[str, Any]) -> RunSettings:
    from penstock.jobs.settings import RunSettings

    known = [field.name for field in dataclasses.fields(RunSettings)]
    for name in values:
        if name not in known:
            more = ", ".join(one for one in known if one not in _OWN)
            raise JobDefinitionError(f"Unknown setting {name!r}. The settings of a run are {more}.")
    return RunSettings(**values)
