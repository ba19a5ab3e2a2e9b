"""Job harness: run a whole job in the test process, without Spark."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec

from penstock.base.durations import Duration, milliseconds
from penstock.base.instants import MILLISECOND, milliseconds_of
from penstock.bindings.types import FilesBinding
from penstock.commands.command_catalog import CommandCatalog, command_catalog
from penstock.commands.command_target import check_known, parse_target
from penstock.control.commands import Command
from penstock.control.receipts import Receipt
from penstock.errors import JobDefinitionError, UnknownIdError
from penstock.operators.record_blocks import DeadLetter
from penstock.operators.watermarks import WatermarkUpdate
from penstock.streams.graph import COMMANDS, SourceNode
from penstock.streams.job_description import JobDescription
from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.batch_report import batch_report
from penstock.testing.batch_runner import NOW, BatchRunner, check_parallelism
from penstock.testing.command_fields import CommandFields
from penstock.testing.memory_tables import memory_tables
from penstock.testing.model_driver import ModelDriver
from penstock.testing.replay import check_replay
from penstock.testing.source_chunks import check_records
from penstock.testing.state_view import key_of, values_by_key

if TYPE_CHECKING:
    from penstock.testing.saved_states import Savepoint

__all__ = ["CommandFields", "JobHarness"]


class _Batch(msgspec.Struct):
    """The input of a micro-batch."""

    inputs: dict[str, list[tuple[str, list[Any]]]] = {}
    updates: list[WatermarkUpdate] = []
    ends: bool = False


class JobHarness:
    """A test harness that runs a whole job in this process, without Spark, one micro-batch at a time.

    Everything uses the code that runs in Spark's workers: records are decoded, keyed and shuffled to tasks, commands
    are validated and applied, state is stored as bytes, and sinks receive columns. The clock moves only when a test
    moves it, and the same calls produce the same bytes. The examples of the methods continue this one.

    >>> class Count(ps.ProcessFunction):
    ...     visits = ps.ValueState(int)
    ...     least = ps.Setting(int, 1)
    ...
    ...     def process_record(self, visit, ctx):
    ...         self.visits.set((self.visits.get() or 0) + 1)
    ...         if self.visits.get() >= self.least.get():
    ...             yield visit
    >>> job = ps.Job("doors")
    >>> visits = job.data_stream(
    ...     "visits", schema="door STRING, at BIGINT", event_time="at", watermarks=ps.Watermarks.bounded("1s")
    ... )
    >>> visits.key_by("door").process("count", Count(), output="door STRING, at BIGINT").sink_to("seen")
    >>> run = JobHarness(job, parallelism=2)
    >>> run.send("visits", {"door": "north", "at": 5})
    >>> run.run_batch().output("seen")
    [Record(door='north', at=5)]

    Args:
        job: the job. The harness works on copies of its functions, as Spark's workers do.
        parallelism: the number of tasks, from 1 to the job's key groups.
        strict: raise StrictModeError for the first record that cannot be processed, instead of writing a dead letter.
        now: the initial time of the clock, with a time zone.
        partitions: the number of partitions of each partitioned stream, such as a Kafka topic. The watermark of such a
            stream is that of its slowest partition. Any other stream has one watermark, whichever partitions its
            records are sent to.
        arrival_seed: the seed of the order in which shuffled records arrive at a task. No result may depend on it.
        from_savepoint: the initial state: a `Savepoint`, or the place of a savepoint or dump of a real job.
        allow_non_restored_state: drop states of the savepoint whose step the job no longer has.

    Raises:
        JobDefinitionError: the job, or a setting of the harness, is invalid.
        StateMismatchError: the state of the savepoint does not fit what the job declares.
        SnapshotError: the savepoint cannot be used.

    """

    def __init__(
        self,
        job: JobDescription,
        *,
        parallelism: int = 1,
        strict: bool = False,
        now: dt.datetime = NOW,
        partitions: Mapping[str, int] | None = None,
        arrival_seed: int = 0,
        from_savepoint: Savepoint | str | Path | None = None,
        allow_non_restored_state: bool = False,
    ) -> None:
        check_parallelism(job, parallelism)
        by_name = {name: tuple(map(_partition, range(count))) for name, count in (partitions or {}).items()}
        self.runner: BatchRunner = BatchRunner(
            job, parallelism=parallelism, strict=strict, partitions=by_name
        )
        """The lower level, for tests that inspect bytes, slots and reports."""
        self.tables: Final = memory_tables(self.runner)
        """The rows of the tables in which the job looks records up, by table, which tests fill and change."""
        for name in by_name:
            self._source(name)
        self.runner.now = now
        self._seed: Final = arrival_seed
        self._crashes = 0
        self._waiting = _Batch()
        self._last: tuple[BatchRunner, _Batch] | None = None
        self._settings: dict[str, dict[str, Any]] = {}
        self._policies: Final = ModelDriver(self.runner)
        self.outcomes: list[BatchOutcome] = []
        """The outcome of each micro-batch, oldest first."""
        if from_savepoint is not None:
            self._begin_from(from_savepoint, allow_non_restored_state)

    def send(self, stream: str, *records: Any, partition: int = 0) -> None:
        """Send records to a stream. The next micro-batch reads them.

        >>> run.send("visits", {"door": "south", "at": 7}, {"door": "south", "at": 8})
        >>> run.send("visits", [b"no JSON"], partition=1)

        Args:
            stream: a data stream or a control stream of the job, or `commands` for encoded commands.
            records: objects with the fields of the stream's schema, protobuf messages, or what a source would read:
                dicts, and JSON as bytes or text. If the schema has a single field of text or bytes, text and bytes are
                the value of that field. A `KafkaMessage` has a body and the message around it. A list stands for the
                records in it.
            partition: the number of the source partition. Records keep their order within a partition.

        Raises:
            UnknownIdError: the job has no such stream.
            SchemaError: an object is not a record of the stream.

        """
        found = [
            one for record in records for one in (record if isinstance(record, list | tuple) else [record])
        ]
        if stream == COMMANDS:
            _ = self._catalog
            found = [one if isinstance(one, bytes) else msgspec.json.encode(one) for one in found]
        else:
            check_records(self._source(stream), found)
        runs = self._waiting.inputs.setdefault(stream, [])
        name = _partition(partition)
        if runs and runs[-1][0] == name:
            runs[-1][1].extend(found)
        else:
            runs.append((name, found))

    def send_command(
        self,
        kind: str,
        target: str = "*",
        values: Any = None,
        *,
        keys: Sequence[Any] | None = None,
        **fields: Unpack[CommandFields],
    ) -> str:
        """Send a command and return its id. The next micro-batch reads it.

        >>> command = run.send_command("set", "count", {"least": 2}, issued_by="ann")
        >>> run.run_batch().output("seen")
        [Record(door='south', at=8)]
        >>> [receipt.status for receipt in run.receipts(command)]
        ['ACCEPTED', 'VALIDATED', 'APPLIED']

        Args:
            kind: the kind of command, such as `set`, `pause`, or the name of a handler.
            target: `*` (the whole job), `STEP`, `STEP/*` (all keys), `STEP/KEY` or `STEP/KEY,KEY`.
            values: the payload; any value that can be JSON.
            keys: the keys, if the target is a step: for keys of several fields, or text that a target cannot express.
            fields: the other fields of the command: id, version, issued_by, effective_at, expires_at, apply.

        Raises:
            UnknownIdError: the job has no keyed step, so it takes no commands.
            CommandRefusedError: the job does not take this command for that target; the command line refuses the same.

        """
        catalog = self._catalog
        keys_json = None if keys is None else msgspec.json.encode(list(keys)).decode()
        payload = msgspec.Raw(msgspec.json.encode(values))
        fields.setdefault("id", self._next_command_id())
        command = Command(
            kind=kind, target=parse_target(target, keys_json, catalog), payload=payload, **fields
        )
        check_known(command, catalog)
        self.send(COMMANDS, msgspec.json.encode(command))
        return command.id

    def load_model(self, step: str, model: str, version: str, content: bytes, **fields: Any) -> str:
        """Send a command that loads a version of a model, whose content the test has; return the command's id.

        >>> run.load_model("count", "fraud", "1", b"model", format="onnx")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        penstock.errors.CommandRefusedError: The step declares no model.

        Args:
            step: the step that declares the model.
            model: the name of the model.
            version: the name of the new version.
            content: the content of the model's file.
            fields: the other fields of the payload: format (`onnx`, `skops`, `safetensors` or `arrow`), and perhaps
                metadata and sample.

        """
        from penstock.testing.model_store import load_order

        return self.send_command("load-model", step, load_order(self.runner, model, version, content, fields))

    def run_batch(self) -> BatchOutcome:
        """Run a micro-batch on everything sent since the last one, at the current time of the clock.

        >>> outcome = run.run_batch()
        >>> outcome.number, outcome.outputs, outcome.dead_letters
        (2, {}, [])

        Raises:
            StrictModeError: a record could not be processed, and the harness is strict.

        """
        batch, self._waiting = self._waiting, _Batch()
        before = self.runner.copy()
        outcome = self._run(self.runner, batch)
        self._last = before, batch
        self.outcomes.append(outcome)
        for command in self._policies.see(outcome, self.runner.now):
            self.send(COMMANDS, command)
        return outcome

    def finish(self) -> BatchOutcome:
        """Run a final micro-batch in which event time ends, as in a bounded run: pending windows and timers fire.

        >>> run.finish().outputs
        {}
        """
        self._waiting.ends = True
        return self.run_batch()

    def output(self, sink: str) -> list[Any]:
        """Return all records written to a sink so far, as objects of its schema, in the order of the micro-batches.

        >>> run.output("seen")
        [Record(door='north', at=5), Record(door='south', at=8)]

        Raises:
            UnknownIdError: the job has no such sink.

        """
        names = [node.name for node in self.runner.plan.graph.sinks()]
        if sink not in names:
            raise UnknownIdError(f"The job has no sink {sink!r}; it has {', '.join(names) or 'none'}.")
        return [record for outcome in self.outcomes for record in outcome.output(sink)]

    def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters so far: the records that could not be processed, each with reason, place and bytes.

        >>> [(letter.stream, letter.raw) for letter in run.dead_letters()]
        [('visits', b'no JSON')]
        """
        return [letter for outcome in self.outcomes for letter in outcome.dead_letters]

    def receipts(self, command_id: str | None = None) -> list[Receipt]:
        """Return the receipts so far, of all commands or of the one with the given id.

        >>> run.receipts("command-1")[-1].keys
        0
        """
        found = [receipt for outcome in self.outcomes for receipt in outcome.receipts]
        return [receipt for receipt in found if command_id in (None, receipt.id)]

    def state(self, step: str, key: Any = None) -> Any:
        """Return the state of a step for a key: values by state name, as JSON values. None if the key has no state.

        >>> run.state("count", key="south")
        {'visits': 2}
        >>> run.state("count")
        {'north': {'visits': 1}, 'south': {'visits': 2}}

        Args:
            step: the id of the step.
            key: the key; a tuple for a key of several fields. Without it, the result has all keys with state.

        Raises:
            UnknownIdError: the job has no such step.
            StateError: the key is not of the step's type.

        """
        if key is None:
            return values_by_key(self.runner, step)
        return values_by_key(self.runner, step).get(key_of(self.runner, step, key))

    def settings(self, step: str) -> dict[str, Any]:
        """Return the settings of a step currently in force, as JSON values.

        >>> run.settings("count")
        {'least': 2}

        Raises:
            UnknownIdError: the job has no such step.

        """
        steps = self._catalog.steps
        if step not in steps:
            raise UnknownIdError(f"The job has no step {step!r}; it has {', '.join(steps)}.")
        return {**steps[step].defaults, **self._settings.get(step, {})}

    def advance_clock(self, by: Duration) -> None:
        """Advance the clock, which is processing time. Timers that become due fire in the next micro-batch.

        >>> run.advance_clock("10s")

        Args:
            by: a timedelta, or a number with a unit: "500ms", "5s", "10m", "2h", "1d".

        """
        self.runner.now += milliseconds(by, "The time by which the clock moves") * MILLISECOND

    def advance_watermark(self, stream: str, at: dt.datetime | int, *, partition: int | None = None) -> None:
        """Advance the watermark of a stream in the next micro-batch, in addition to what its records do.

        >>> run.advance_watermark("visits", 10_000)

        Args:
            stream: a data stream with watermarks.
            at: the watermark, as a datetime or in milliseconds since 1970.
            partition: the number of one partition, if the stream is partitioned. Without it, all partitions advance.

        Raises:
            UnknownIdError: the job has no such stream.
            JobDefinitionError: the stream has no watermarks.

        """
        node = self._source(stream)
        if node.watermarks is None:
            timed = [
                source.name for source in self.runner.plan.graph.sources() if source.watermarks is not None
            ]
            raise JobDefinitionError(
                f"The stream {stream!r} has no watermarks; {', '.join(timed) or 'no stream'} has. Declare it with "
                "event_time= and watermarks=."
            )
        known = self.runner.plan.partitions.get(stream, ("",))
        names = known if partition is None else (_partition(partition),)
        at_ms = at if isinstance(at, int) else milliseconds_of(at)
        self._waiting.updates.append(WatermarkUpdate(node.id, dict.fromkeys(names, at_ms)))

    def crash(self) -> BatchOutcome | None:
        """Crash the job: lose everything that is not stored, and repeat the last micro-batch.

        In the repetition, records arrive in another order. The method checks that the outcome is the same to the byte,
        and returns it, or None if there is no micro-batch to repeat.

        >>> run.crash() == run.outcomes[-1]
        True

        Raises:
            ReplayMismatchError: the outcome is different, so the job would not survive a crash unchanged.

        """
        self._crashes += 1
        if self._last is None:
            self.runner.forget()
            return None
        before, batch = self._last
        again = before.copy()
        outcome = self._run(again, batch)
        check_replay(self.outcomes[-1], outcome, self.runner, again)
        again.now = max(again.now, self.runner.now)
        self.runner = again
        self.outcomes[-1] = outcome
        return outcome

    def restart(self) -> None:
        """Stop the job between two micro-batches and start it again. Only stored state remains.

        >>> run.restart()
        """
        self.runner.forget()
        self.runner.wake()
        self._last = None

    def rescale(self, parallelism: int) -> None:
        """Stop the job between two micro-batches and start it again with another number of tasks.

        >>> run.rescale(3)
        >>> run.state("count", key="north")
        {'visits': 1}

        Args:
            parallelism: the number of tasks, from 1 to the job's key groups.

        Raises:
            JobDefinitionError: the parallelism is out of range.

        """
        from penstock.testing.saved_states import rescale_runner

        check_parallelism(self.runner.job, parallelism)
        self.runner = rescale_runner(self.runner, parallelism)
        self._last = None

    def savepoint(self, place: str | Path | None = None) -> Savepoint:
        """Take a savepoint between two micro-batches. Another harness, or a real job, can start from it.

        >>> saved = run.savepoint()
        >>> JobHarness(job, from_savepoint=saved).state("count", key="south")
        {'visits': 2}

        Args:
            place: a new folder for the savepoint. Without it, the folder is temporary and removed with the `Savepoint`.

        Raises:
            SnapshotError: the savepoint cannot be written there; AlreadyThereError if the place has a snapshot.

        """
        from penstock.testing.saved_states import Savepoint, scratch_folder, take_savepoint

        folder = scratch_folder() if place is None else None
        where = folder.name if folder is not None else str(place)
        return Savepoint(where, take_savepoint(self.runner, where), folder)

    def report(self) -> str:
        """Return a readable report of the last micro-batch: its inputs, outputs, receipts and dead letters.

        >>> print(JobHarness(job).report())
        No micro-batch has run.
        """
        if self._last is None or not self.outcomes:
            return "No micro-batch has run." if not self.outcomes else batch_report({}, self.outcomes[-1])
        return batch_report(self._last[1].inputs, self.outcomes[-1])

    def _run(self, runner: BatchRunner, batch: _Batch) -> BatchOutcome:
        seed = self._seed + runner.number + 7919 * self._crashes
        outcome = runner.run(batch.inputs, seed=seed, ends=batch.ends, updates=batch.updates)
        for kind, step, _, _, body in outcome.reports:
            if kind == "settings":
                self._settings[step] = msgspec.json.decode(body)
        return outcome

    def _begin_from(self, source: Savepoint | str | Path, allow_non_restored_state: bool) -> None:
        from penstock.testing.saved_states import begin_from

        place = str(source) if isinstance(source, str | Path) else source.place
        manifest = begin_from(self.runner, place, allow_non_restored_state=allow_non_restored_state)
        if not isinstance(source, str | Path):
            # Streams continue at their positions, so that no two records have the same one.
            self.runner.offsets = {
                (stream, partition): offset
                for stream, found in manifest.positions.items()
                for partition, offset in found.items()
            }
            self.runner.number = manifest.batch + 1

    def _source(self, stream: str) -> SourceNode:
        nodes = {node.name: node for node in self.runner.plan.graph.sources()}
        if stream not in nodes:
            known = ", ".join([*nodes, COMMANDS] if self.runner.plan.graph.steps() else nodes)
            raise UnknownIdError(
                f"The job {self.runner.job.name!r} has no stream {stream!r}; it has {known}."
            )
        return nodes[stream]

    @functools.cached_property
    def _catalog(self) -> CommandCatalog:
        """The commands that the job takes. Raises UnknownIdError when it takes none."""
        plan = self.runner.plan
        if not plan.graph.steps():
            raise UnknownIdError(
                f"The job {self.runner.job.name!r} has no keyed step, so it takes no commands."
            )
        return command_catalog(self.runner.job.name, plan.accepting, _NOWHERE)

    def _next_command_id(self) -> str:
        sent = sum(len(found) for _, found in self._waiting.inputs.get(COMMANDS, []))
        read = sum(count for (name, _), count in self.runner.offsets.items() if name == COMMANDS)
        return f"command-{read + sent + 1}"


# Commands come from the test itself.
_NOWHERE: Final = FilesBinding(COMMANDS, "jsonl:", "jsonl", "")


def _partition(number: int) -> str:
    """Return the name of a source partition, in the form that Kafka's have."""
    return f"{number:05d}"
