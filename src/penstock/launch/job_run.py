"""Job runs: a running job in this process, to send to and to inspect, and its result."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.described_state import read_described
from penstock.checkpoints.unread_files import list_unread_files
from penstock.commands.command_catalog import read_command_catalog
from penstock.commands.command_sender import command_binding, send_command
from penstock.commands.command_target import check_known, parse_target
from penstock.commands.receipt_history import await_end, find_history, find_newest_histories
from penstock.commands.receipt_segments import NewReceipts
from penstock.control.commands import AT_ONCE, Apply, Command
from penstock.control.receipts import Receipt
from penstock.errors import BindingError, JobFailedError
from penstock.jobs.events import user_name
from penstock.jobs.job_log import job_log
from penstock.jobs.requests import ask, new_request
from penstock.launch.collected_outputs import CollectedOutputs, HasOutputs
from penstock.launch.stream_inputs import IteratorFeed, StreamInput, is_sequence
from penstock.savepoints.state_pages import KeysWanted, key_page
from penstock.streams.graph import COMMANDS

if TYPE_CHECKING:
    from penstock.jobs.runner import JobRunner, RunSummary
    from penstock.spark.types import SparkSession

__all__ = ["Bound", "JobRun", "RunResult"]

_POLL_S: Final = 0.02
_MAX_RECEIPTS: Final = 1 << 31
_KEYS_AT_ONCE: Final = 10_000


@dataclass(frozen=True)
class Bound:
    """The Python objects that a run is bound to.

    `inputs` are the streams that take records from Python, and `sequences` the lists and frames that they begin with.
    `iterators` are read to their end before the job starts, and `feeds` while it runs.
    """

    checkpoint: Path
    inputs: dict[str, StreamInput]
    sequences: dict[str, Any]
    iterators: dict[str, Any]
    feeds: list[IteratorFeed]
    outputs: CollectedOutputs


@dataclass(frozen=True)
class RunResult(HasOutputs):
    """The result of a run that has ended.

    Args:
        summary: the status and the counts of the run.
        outputs: the outputs of the collected sinks.

    """

    summary: RunSummary
    outputs: CollectedOutputs


class JobRun(HasOutputs):
    """A running job. A context manager, which stops the job at the end and raises the error if it failed.

    `Job.start` returns it. Outputs and receipts are those of the whole checkpoint, including earlier runs.
    """

    def __init__(self, runner: JobRunner, bound: Bound) -> None:
        self._runner: Final = runner
        self._bound: Final = bound
        self.outputs = bound.outputs
        self._stop: Final = threading.Event()
        self._is_up: Final = threading.Event()
        self._summary: RunSummary | None = None
        self._error: BaseException | None = None
        self._thread: Final = threading.Thread(target=self._work, name="penstock-run", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self._end()

    @property
    def job_id(self) -> str:
        """The id of the run, which events and metrics have too."""
        return self._runner.job_id

    @property
    def checkpoint(self) -> Path:
        """The folder with the run's progress and state, which the command line accepts too."""
        return self._bound.checkpoint

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended yet."""
        return self._thread.is_alive()

    def begin(self) -> None:
        """Start the run, and return when it is ready for its first micro-batch. Raises the error if it is refused."""
        self._thread.start()
        self._await(self._is_up.is_set, None)
        for feed in self._bound.feeds:
            feed.start()

    def send(self, stream: str, *records: Any) -> int:
        """Send records to a stream without a binding, or bound to Python records. Return their number.

        The next micro-batches read them.

        Args:
            stream: the name of the stream.
            records: objects of the stream's class or dicts, one by one or in a list; or a single frame.

        Raises:
            BindingError: the stream is bound to a URI, or the job has no such stream.
            SchemaError: the records do not fit the stream.
            PenstockError: the run has failed, or has ended.

        """
        if stream not in self._bound.inputs:
            known = ", ".join(self._bound.inputs) or "none"
            raise BindingError(
                f"{stream!r} takes no records from Python; these streams do: {known}. A stream takes them if bindings "
                "leaves it out or binds it to records."
            )
        self._check()
        only = records[0] if len(records) == 1 else None
        given: Any = only if is_sequence(only) else records
        return self._bound.inputs[stream].send(given)

    def send_command(
        self,
        kind: str,
        target: str = "*",
        payload: Any = None,
        *,
        version: int | None = None,
        effective_at: dt.datetime | None = None,
        apply: Apply = AT_ONCE,
    ) -> str:
        """Send a command and return its id. See docs/control.md for the kinds and targets.

        Args:
            kind: the kind of command, such as `set`, `pause`, or the name of a handler.
            target: `*` (the whole job), `STEP`, `STEP/*` (all keys), `STEP/KEY` or `STEP/KEY,KEY`.
            payload: any value that can be JSON.
            version: orders the commands of one kind for one target; a lower version than the applied one is rejected.
            effective_at: the event time at which the command takes effect; None is the cut of its micro-batch.
            apply: in real time, `at-once` (in each slot when it arrives) or `at-checkpoint` (in all slots at the end of
                the interval). A micro-batch has one cut, which is both.

        Raises:
            CommandRefusedError: the job does not take this command.

        """
        catalog = read_command_catalog(self.checkpoint)
        binding = command_binding(catalog, None)
        command = Command(
            id=uuid.uuid4().hex,
            kind=kind,
            target=parse_target(target, None, catalog),
            version=version,
            issued_by=user_name(),
            issued_at=dt.datetime.now(dt.UTC),
            effective_at=effective_at,
            apply=apply,
            payload=msgspec.Raw(msgspec.json.encode(payload)),
        )
        check_known(command, catalog)
        send_command(command, binding)
        return command.id

    def await_receipt(self, command_id: str, timeout_s: float = 60.0) -> Receipt:
        """Wait until a command is applied or rejected and its micro-batch is committed. Return its final receipt.

        Raises:
            TimeoutError: there is no final receipt after `timeout_s` seconds.
            PenstockError: the run fails; JobFailedError if it ends before.

        """
        new = NewReceipts(self.checkpoint)
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            found = await_end(new, command_id, 0.2, lambda _: None, look_back=True)
            if found is not None:
                # Receipts appear a moment before the micro-batch is committed, and state can only be read after that.
                self._await(self._has_read_commands, max(0.0, deadline_s - time.monotonic()))
                return found
            self._check()
        raise TimeoutError(f"The command {command_id} has no final receipt after {timeout_s:g} s.")

    def await_batch(self, timeout_s: float = 60.0) -> None:
        """Wait until all records and commands sent so far are processed and committed.

        Raises:
            TimeoutError: they are not after `timeout_s` seconds.
            PenstockError: the run fails.

        """
        self._await(self._is_idle, timeout_s)

    def _is_idle(self) -> bool:
        return self._has_read_commands() and all(one.is_read for one in self._bound.inputs.values())

    def _has_read_commands(self) -> bool:
        return not list_unread_files(self.checkpoint, COMMANDS, str(self.checkpoint / COMMANDS))

    def receipts(self, command_id: str | None = None) -> list[Receipt]:
        """Return the receipts of one command, or of all commands, in order."""
        if command_id is not None:
            found = find_history(self.checkpoint, command_id)
            return [] if found is None else list(found.receipts)
        histories = find_newest_histories(self.checkpoint, lambda _: True, _MAX_RECEIPTS)
        return [receipt for history in histories for receipt in history.receipts]

    def state(self, step: str, key: Any = None) -> dict[Any, Any]:
        """Return the state of a step after the newest committed micro-batch, as JSON values.

        Args:
            step: the id of the step.
            key: the key; a tuple for a key of several fields. With it, the result has the values by state name, and is
                empty if the key has no state. Without it, the result has these values for all keys, by key.

        """
        self._check()
        checkpoint = Checkpoint(self.checkpoint)
        described = read_described(self.checkpoint)
        text = None if key is None else msgspec.json.encode(key).decode()
        found: dict[Any, Any] = {}
        after: str | None = None
        while True:
            wanted = KeysWanted(step=step, key=text, after=after, limit=_KEYS_AT_ONCE, max_bytes=1 << 30)
            page = key_page(checkpoint, described, wanted)
            for one in page.items:
                found[tuple(one.key) if isinstance(one.key, list) else one.key] = one.values
            after = page.next
            if after is None:
                return found if key is None else next(iter(found.values()), {})

    def stop(self, *, drain: bool = False, savepoint: str | None = None) -> RunResult:
        """Stop the run between two micro-batches, if it has not ended, and return its result.

        Args:
            drain: process the available input first.
            savepoint: the folder or address of a savepoint to write.

        Raises:
            PenstockError: the run has failed.

        """
        if self.is_running and (drain or savepoint is not None):
            for feed in self._bound.feeds:
                feed.stop()
            request = new_request("stop", drain=drain, savepoint=savepoint, by=user_name())
            ask(self.checkpoint, request, timeout_s=3600.0)
        self._end()
        return self.wait()

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait for the end of the run, and return its result.

        Raises:
            TimeoutError: the run has not ended after `timeout_s` seconds.
            PenstockError: the run has failed.

        """
        self._await(lambda: not self.is_running, timeout_s)
        self._check_failed()
        assert self._summary is not None
        return RunResult(self._summary, self.outputs)

    def _end(self) -> None:
        for feed in self._bound.feeds:
            feed.stop()
        self._stop.set()
        self._thread.join()

    def _await(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            if not self.is_running:
                self._check_failed()
                # A bounded run that ends has read everything.
                return
            self._check_feeds()
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"The wait for the run {self.job_id} has timed out after {timeout_s:g} s.")
            time.sleep(_POLL_S)

    def _check(self) -> None:
        """Raise the error if the run has failed, or JobFailedError if it has ended."""
        self._check_failed()
        self._check_feeds()
        if not self.is_running:
            raise JobFailedError(f"The run {self.job_id} has ended. Start the job again.")

    def _check_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_feeds(self) -> None:
        for feed in self._bound.feeds:
            if feed.error is not None:
                self._end()
                raise feed.error

    def _work(self) -> None:
        from penstock.jobs.runner import RunHooks

        try:
            hooks = RunHooks(on_note=job_log.info, on_open=self._open, on_running=self._running)
            self._summary = self._runner.run(self._stop, hooks)
        except BaseException as e:  # raised again in the thread that waits for the run
            self._error = e

    def _open(self) -> None:
        for name, one in self._bound.inputs.items():
            one.open(self._bound.sequences.get(name))
            if name in self._bound.iterators:
                one.drain(self._bound.iterators[name])

    def _running(self, _: SparkSession) -> None:
        self._is_up.set()
