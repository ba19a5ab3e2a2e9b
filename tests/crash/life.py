"""The life of a job: runs and the actions in them, in this process, interrupted anywhere and resumed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from unittest import mock

from broker_clients import forget_producers, patch_clients
from broker_model import Brokers, Change
from crash_jobs import CrashJob, Feed, Row
from disk_store import DiskStore
from disk_tree import Tree
from model_journal import RECEIVERS, JournaledReceiver
from recording_broker import RecordingBrokers
from recording_disk import Died, RecordingDisk
from spark_model import ModelQuery, ModelSpark, forget_workers, model_compile, model_read_slots
from stand_ins import DumpProcess, LastMoment, NoGauge, keep, nothing

import penstock.errors
from penstock.checkpoints import checkpoint_files, checkpoint_sync, stored_checkpoint, working_folder
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.jobs import dump_queue, runner
from penstock.jobs.requests import answer_to, new_request, post
from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings
from penstock.savepoints import snapshot_capture
from penstock.spark import lazy_pickle, log_source, query

__all__ = ["Action", "Ended", "Life", "Run", "Scenario"]

ActionKind = Literal["feed", "send", "turn", "stop", "rescale", "stop request", "restart", "grow", "appear"]
_MAX_TICKS = 400
_SINK_PARTITIONS = 2
_OWN_SINKS = ("dead-letters", "receipts")


@dataclass(frozen=True)
class Action:
    """Something that happens while a job runs.

    `feed` gives the next file of a stream; `send` the next command; `turn` lets Spark look at the sources once. `stop`
    is a signal, and `late` says that it comes when the next micro-batch has just been planned. Requests are awaited.
    `grow` gives the topic of a stream so many `partitions`; `appear` makes a topic, whose name is the stream's here.
    """

    kind: ActionKind
    stream: str = ""
    parallelism: int = 0
    savepoint: bool = False
    drain: bool = False
    late: bool = False
    partitions: int = 0

    def __str__(self) -> str:
        more = [
            f"{name}={getattr(self, name)}"
            for name in ("stream", "parallelism", "savepoint", "drain", "late", "partitions")
            if getattr(self, name)
        ]
        return " ".join([self.kind, *more])


@dataclass(frozen=True)
class Run:
    """One run of the job: its actions, and how it is started.

    With `early_stop` it is stopped while it starts. `checkpoint` names its checkpoint; with `from_savepoint`
    a new one starts from the newest savepoint. `bound` has the topics of streams, or `~` and their patterns,
    if these are not their names.
    """

    actions: tuple[Action, ...] = ()
    bounded: bool = False
    early_stop: bool = False
    checkpoint: str = "checkpoint"
    from_savepoint: bool = False
    fresh: bool = False
    bound: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """Everything that happens to a job: its runs, the files of its streams, and the commands.

    `topics` names the streams and sinks that are topics, including commands, receipts and dead letters;
    `topic_options` are appended to the URI of each. `partitions` is their initial number for streams. With
    `stored` the checkpoints are on an object store.
    """

    job: CrashJob
    runs: tuple[Run, ...]
    feed: Feed
    commands: tuple[Row, ...] = ()
    parallelism: int = 2
    retained: int = 100
    form: Literal["jsonl", "csv", "parquet"] = "jsonl"
    options: Mapping[str, str] = field(default_factory=dict)
    journaled: bool = False
    own_commands: bool = False
    topics: frozenset[str] = frozenset()
    topic_options: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 2
    stored: bool = False

    def is_exactly_once(self, sink: str) -> bool:
        """Return whether a sink must have each record once in the end."""
        return sink not in self.topics or "exactly-once" in self.topic_options.get(sink, "")


@dataclass
class Ended:
    """How a life ended or was interrupted: why, and the summary of the last run."""

    error: BaseException | None = None
    finished: bool = False


class Life:
    """Runs a scenario in a folder. Enter it once; then any number of crashes may be tried."""

    def __init__(self, root: Path) -> None:
        self.root = root / "disk"
        self.root.mkdir(parents=True)
        self.disk = RecordingDisk(self.root)
        self.brokers = RecordingBrokers(self.disk)
        self.seed = 0
        self.attempt = 0
        self._uuids = 0
        self._jobs: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._patch(stack.enter_context)
            # Patches that are not per run are kept.
            self._stack = stack.pop_all()
        return self

    def _patch(self, patch: Callable[[Any], Any]) -> None:
        patch(self.disk)
        patch_clients(self.brokers, patch)
        patch(mock.patch.object(runner, "open_session", self._session))
        patch(mock.patch.object(runner, "ship_code", nothing))
        patch(mock.patch.object(runner, "warm_up", nothing))
        patch(mock.patch.object(runner, "lock_for_jvm", mock.Mock()))
        patch(mock.patch.object(runner, "MemoryGauge", NoGauge))
        patch(mock.patch.object(runner, "handle_signals", contextlib.nullcontext))
        patch(mock.patch.object(log_source, "_register", lambda spark, kind: spark.register(kind)))
        patch(mock.patch.object(query, "_compile", model_compile))
        patch(mock.patch.object(query, "_REST_S", 0))
        patch(mock.patch("uuid.uuid4", self._uuid))
        patch(mock.patch.object(checkpoint_sync, "ThreadPoolExecutor", LastMoment))
        patch(mock.patch.object(StoredCheckpoint, "at", self._stored_at))
        for module in (stored_checkpoint, working_folder):
            patch(mock.patch.object(module, "ThreadPoolExecutor", LastMoment))
        patch(mock.patch.object(checkpoint_sync, "sync_file_system", self.disk.sync_all))
        patch(mock.patch.object(snapshot_capture, "read_slots", model_read_slots))
        patch(mock.patch.object(lazy_pickle.Sealed, "__init__", keep))
        patch(mock.patch.object(lazy_pickle.Sealed, "open", lambda self: self._value))
        patch(mock.patch.object(checkpoint_files, "_BETWEEN_LOOKS_S", 0))
        patch(
            mock.patch.object(dump_queue.DumpQueue, "_start", lambda dumps, wanted: self._dump(dumps, wanted))
        )
        patch(mock.patch("penstock.jobs.job_sources._receiver", self._receiver))

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _stored_at(self, uri: str) -> StoredCheckpoint:
        folder = self.root / uri.rpartition("/")[2]
        folder.mkdir(exist_ok=True)
        return StoredCheckpoint(DiskStore(self.disk, self.root / "store"), uri, folder)

    def _uuid(self) -> uuid.UUID:
        # Random, but reproducible.
        self._uuids += 1
        return uuid.UUID(
            bytes=hashlib.blake2b(f"{self.seed}/{self._uuids}".encode(), digest_size=16).digest()
        )

    @contextlib.contextmanager
    def _session(self, settings: Any) -> Iterator[ModelSpark]:
        self._spark = ModelSpark(self.brokers, self.seed)
        self._spark.set_retained(settings.retained_batches)
        yield self._spark

    def _dump(self, dumps: Any, wanted: Any) -> Any:
        """A fake process that makes a dump, and is done when it is polled."""
        return DumpProcess(self._spark, dumps._checkpoint, wanted)

    def _receiver(self, node: Any, binding: Any, folder: Path, place: Any) -> Any:
        return JournaledReceiver(folder, self.root / "in" / binding.stream, self._acknowledged)

    def _acknowledged(self, path: Path) -> None:
        with self.disk.durably():
            path.rename(path.with_name(f".taken-{path.name}"))

    def begin(self, scenario: Scenario) -> None:
        """Begin with an empty disk."""
        self.scenario = scenario
        self._uuids = 0
        if scenario.job.name not in self._jobs:
            self._jobs[scenario.job.name] = scenario.job.make()
        with self.disk.durably():
            for path in self.root.iterdir():
                shutil.rmtree(path)
            for stream in (*scenario.job.streams, "commands"):
                (self.root / "in" / stream).mkdir(parents=True)
            (self.root / "out").mkdir()
        self.brokers.forget()
        for topic in sorted(scenario.topics):
            count = _SINK_PARTITIONS if topic in (*scenario.job.sinks, *_OWN_SINKS) else scenario.partitions
            self.brokers.do_durably(Change("topic", topic, count=count))
        self.disk.begin()
        self.brokers.begin(self.brokers.state)

    def go_on(self, tree: Tree | None = None, brokers: Brokers | None = None, after_s: float = 1.0) -> None:
        """Record anew from the state after a crash, some time later."""
        self.disk.begin(tree)
        state = self.brokers.state if brokers is None else brokers
        state.pass_time(state.now_s + after_s)
        self.brokers.begin(state)

    def live(self, run: int = 0, action: int = 0) -> Ended:
        """Continue from an action of a run, to the end or until the process dies."""
        self._begin_process()
        try:
            for number in range(run, len(self.scenario.runs)):
                self._live(number, action if number == run else 0)
                self.disk.mark((number + 1, 0))
        except Died as e:
            return Ended(e)
        except Exception as e:
            return Ended(e)
        return Ended(finished=True)

    def start_and_stop(self, run: int) -> Ended:
        """Start a run that is stopped while it starts; then the first stream gets more input."""
        self._begin_process()
        conductor = _Conductor(self, run, len(self.scenario.runs[run].actions))
        conductor.stops = True
        try:
            self._job(run).run(conductor)  # type: ignore[arg-type]
        except (Died, Exception) as e:
            return Ended(e)
        self.feed("readings")
        return Ended(finished=True)

    def _begin_process(self) -> None:
        """Forget everything of the previous process."""
        self.disk.end_process()
        forget_workers()
        RECEIVERS.clear()
        forget_producers()
        self.attempt += 1

    def settings(self, run: Run) -> RunSettings:
        """Return the settings of a run."""
        scenario, root = self.scenario, self.root
        bindings = {}
        for stream in scenario.job.streams:
            bindings[stream] = f"jsonl:{root}/in/{stream}{scenario.options.get(stream, '')}"
            if scenario.journaled and stream == "readings":
                bindings[stream] = "socket://localhost:1"
        for sink in scenario.job.sinks:
            bindings[sink] = f"{scenario.form}:{root}/out/{sink}"
        bindings["dead-letters"] = f"jsonl:{root}/out/dead-letters"
        if scenario.job.commanded is not None and not scenario.own_commands:
            bindings["commands"] = f"jsonl:{root}/in/commands"
        known = (*scenario.job.streams, *scenario.job.sinks, *_OWN_SINKS, "commands")
        bound = {name: name for name in scenario.topics if name in known}
        for name, topic in sorted({**bound, **run.bound}.items()):
            start = "" if name in (*scenario.job.sinks, *_OWN_SINKS) else "start=earliest"
            options = "&".join(filter(None, (start, scenario.topic_options.get(name, ""))))
            bindings[name] = f"kafka://model:9092/{topic}?{options}".rstrip("?")
        savepoint = None
        if run.from_savepoint:
            found = sorted((root / "savepoints").glob("*/manifest.json"), key=_number_of)
            savepoint = str(found[-1].parent) if found else None
        return RunSettings(
            bindings=bindings,
            bounded=run.bounded,
            checkpoint=f"s3://model/{run.checkpoint}" if scenario.stored else str(root / run.checkpoint),
            parallelism=scenario.parallelism,
            retained_batches=scenario.retained,
            started_by="tester",
            lock_timeout_s=0,
            allow_write=(str(root),),
            from_savepoint=savepoint,
            fresh=run.fresh,
        )

    def _live(self, number: int, action: int) -> None:
        run = self.scenario.runs[number]
        conductor = _Conductor(self, number, action)
        if run.early_stop and action == 0:
            conductor.stops = True
        self.summary = self._job(number).run(conductor)  # type: ignore[arg-type]
        conductor.do_rest()

    def _job(self, run: int) -> JobRunner:
        return JobRunner(self._jobs[self.scenario.job.name], self.settings(self.scenario.runs[run]))

    @property
    def query(self) -> ModelQuery:
        """Return the running query."""
        found = self._spark.query
        assert found is not None
        return found

    def feed(self, stream: str) -> None:
        """Give a stream its next file."""
        if stream in self.brokers.state.topics:
            self._write(stream, self.scenario.feed[stream])
            return
        folder = self.root / "in" / stream
        there = len(self._files(stream))
        files = self.scenario.feed[stream]
        if there < len(files):
            self._give(folder, f"{there:04}.jsonl", files[there])

    def send(self) -> None:
        """Send the next command."""
        if "commands" in self.scenario.topics:
            self._write("commands", [[command] for command in self.scenario.commands])
            return
        there = len(self._files("commands"))
        if there < len(self.scenario.commands):
            command = self.scenario.commands[there]
            if command["kind"] == "dump-state":
                to = command["payload"]["to"].replace("{root}", str(self.root))
                command = {**command, "payload": {**command["payload"], "to": to}}
            self._give(self._command_folder, f"{there:04}.jsonl", [command])

    def grow(self, action: Action) -> None:
        """Add partitions to a topic."""
        self.brokers.do_durably(Change("grow", action.stream or "readings", count=action.partitions))

    def appear(self, action: Action) -> None:
        """Make a topic."""
        self.brokers.do_durably(Change("topic", action.stream, count=action.partitions))

    def _write(self, topic: str, files: Sequence[Sequence[Row]]) -> None:
        """Write the next file into a topic."""
        there = self.brokers.state.topics[topic].given
        if there < len(files):
            messages = tuple(
                (str(row.get("room", "*")).encode(), json.dumps(row).encode()) for row in files[there]
            )
            self.brokers.do_durably(Change("give", topic, messages=messages, count=there))

    @property
    def _command_folder(self) -> Path:
        if self.scenario.own_commands:
            return self.root / "checkpoint" / "commands"
        return self.root / "in" / "commands"

    def _files(self, stream: str) -> list[str]:
        folder = self._command_folder if stream == "commands" else self.root / "in" / stream
        return [path.name for path in folder.iterdir() if path.suffix == ".jsonl"]

    def _give(self, folder: Path, name: str, rows: Sequence[Row]) -> None:
        with self.disk.durably():
            new = folder / f".{name}.new"
            new.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            # Real file times could be equal for two files.
            os.utime(new, ns=(10**18, 10**18))
            new.rename(folder / name)

    def post(self, run: int, action: Action) -> str:
        """Send the running job a request; return its id."""
        checkpoint = self.root / self.scenario.runs[run].checkpoint
        if action.kind == "rescale":
            request = new_request("rescale", parallelism=action.parallelism, by="tester")
        else:
            savepoint = None
            if action.savepoint:
                savepoint = str(self.root / "savepoints" / f"sp-{self.attempt:04}-{run}")
            request = new_request(
                "stop",
                drain=action.drain,
                savepoint=savepoint,
                savepoint_id=f"sp-{self.attempt}",
                by="tester",
            )
        with self.disk.durably():
            post(checkpoint, request)
        return request.id

    def answered(self, run: int, request: str) -> bool:
        """Return whether a request has its answer."""
        return answer_to(self.root / self.scenario.runs[run].checkpoint, request) is not None


def _number_of(path: Path) -> tuple[str, str]:
    return path.parent.name, ""


class _Conductor(threading.Event):
    """Stops a run; whenever the run waits for it, the next action happens."""

    def __init__(self, life: Life, run: int, action: int) -> None:
        super().__init__()
        self._life, self._run, self._next = life, run, action
        self._actions = life.scenario.runs[run].actions
        self._request: str | None = None
        self._ticks = 0
        self.stops = False

    def is_set(self) -> bool:
        return self.stops

    def wait(self, timeout: float | None = None) -> bool:
        """Let a moment pass."""
        self._ticks += 1
        if self._ticks > _MAX_TICKS:
            raise AssertionError("the run does not end")
        if self.stops:
            if not self._life.scenario.runs[self._run].bounded:
                self._life.query.refuses_on_stop = True
            return True
        for receiver in RECEIVERS:
            receiver.receive()
        if self._request is not None and not self._life.answered(self._run, self._request):
            self._life.query.trigger()
            return False
        if self._request is not None:
            self._request = None
            self._done()
        if self._next < len(self._actions):
            self._do(self._actions[self._next])
        else:
            self._end()
        return self.stops

    def _do(self, action: Action) -> None:
        life = self._life
        if action.kind == "feed":
            life.feed(action.stream or "readings")
        elif action.kind == "send":
            life.send()
        elif action.kind == "grow":
            life.grow(action)
        elif action.kind == "appear":
            life.appear(action)
        elif action.kind == "turn":
            life.query.trigger()
        elif action.kind in ("rescale", "stop request"):
            self._request = life.post(self._run, action)
            return
        elif action.kind == "stop":
            life.query.refuses_on_stop = action.late
            self.stops = True
        self._done()

    def _done(self) -> None:
        self._next += 1
        self._life.disk.mark((self._run, self._next))

    def _end(self) -> None:
        """End the actions: remaining input is processed, and an unbounded run is then stopped.

        While brokers do not answer, a job finds no input; the run goes on until they do.
        """
        query, brokers = self._life.query, self._life.brokers
        before = query._told[-1:] if query.isActive else None
        refused = brokers.refused
        query.trigger()
        if query.isActive and query._told[-1:] == before and not query._bounded:
            self.stops = brokers.refused == refused

    def do_rest(self) -> None:
        """Do what an interrupted run has left undone, so that no input is missing."""
        if self._request is not None:
            self._check_savepoint(self._actions[self._next])
            self._request = None
            self._done()
        for action in self._actions[self._next :]:
            if action.kind == "feed":
                self._life.feed(action.stream or "readings")
            elif action.kind == "send":
                self._life.send()
            elif action.kind == "grow":
                self._life.grow(action)
            elif action.kind == "appear":
                self._life.appear(action)
            self._done()

    def _check_savepoint(self, action: Action) -> None:
        """Check that no run continues without the requested savepoint."""
        if action.savepoint and self._request is not None:
            answer = answer_to(
                self._life.root / self._life.scenario.runs[self._run].checkpoint, self._request
            )
            if answer is None or (answer.error and "no micro-batch yet" not in answer.error):
                raise penstock.errors.JobFailedError(f"There is no savepoint: {answer}")
