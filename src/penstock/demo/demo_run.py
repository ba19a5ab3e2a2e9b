"""The demo's run: start rooms and job, change a setting every few seconds, and check everything at the end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console

from penstock.checkpoints.temporary_checkpoints import keep_on_failure
from penstock.demo.check import Checker
from penstock.demo.example import load_fold
from penstock.demo.feeds import READINGS, SETTINGS, Feed, Record
from penstock.demo.folders import Folders
from penstock.demo.job_thread import JobThread
from penstock.demo.rooms import Rooms, SettingChange
from penstock.demo.view import Change, Display, Room, Snapshot
from penstock.errors import ExternalSystemError, JobFailedError

if TYPE_CHECKING:
    from penstock.jobs.runner import RunSummary

__all__ = ["DemoSummary", "Place", "run_demo"]

Place = Literal["folders", "kafka", "mqtt"]

_TICK_S: Final = 0.25
_MAX_READINGS_PER_S: Final = 40_000
_CHANGE_EVERY_S: Final = 4.0
_CHECK_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 120.0


@dataclass
class DemoSummary:
    """The results of the job (as in `RunSummary`), of the demo, and of the check.

    `first_command_s` is the time from the start of the demo until a heater has its first command; None if none had one.
    """

    job_id: str
    status: str
    batches: int
    records_in: dict[str, int]
    records_out: dict[str, int]
    dead_letters: int
    state: dict[str, int]
    seconds: float
    sensors: int
    control_changes: int
    first_command_s: float | None
    violations: int


def run_demo(
    seconds: float = 60,
    sensors: int = 12,
    place: Place = "folders",
    json_output: bool = False,
    watch: Callable[[Snapshot], None] | None = None,
) -> DemoSummary:
    """Run the demo, which Ctrl-C ends early. Print a summary on standard output unless `json_output`.

    The simulation runs for `seconds` once the job is up. `place` says where the streams are: in folders, or in real
    servers that are fetched or installed and started here. `watch` is called with every snapshot of the view. Raises a
    PenstockError when the job or a server fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        interrupted = stack.enter_context(_interrupts())
        display = stack.enter_context(Display())
        stack.enter_context(keep_on_failure(folder, folder / "checkpoint", display.note))
        feed = _open_feed(place, folder, display, stack)
        demo = _Demo(seconds, sensors, feed, folder / "checkpoint", display, interrupted, began, watch)
        summary = demo.run()
    if not json_output:
        _print_summary(summary, folder)
    if summary.violations == 0 and summary.dead_letters == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return summary


def _open_feed(place: Place, folder: Path, display: Display, stack: contextlib.ExitStack) -> Feed:
    if place == "kafka":
        return _open_topics(display, stack)
    return _open_plant(folder, display, stack) if place == "mqtt" else Folders(folder)


def _open_topics(display: Display, stack: contextlib.ExitStack) -> Feed:
    from penstock.demo.topics import Topics
    from penstock.machine.kafka_broker import KafkaBroker

    display.note("Starting a Kafka broker. The first time, fetching it may take half a minute.")
    topics = Topics(stack.enter_context(KafkaBroker()))
    stack.callback(topics.close)
    return topics


def _open_plant(folder: Path, display: Display, stack: contextlib.ExitStack) -> Feed:
    display.note(
        "Starting Mosquitto, RabbitMQ and PostgreSQL. The first time, installing them may take a minute."
    )
    try:
        from penstock.demo.plant import Plant
    except ModuleNotFoundError as e:
        raise ExternalSystemError(
            f"The demo with MQTT writes to PostgreSQL, which needs the package {e.name}. "
            "Run: pip install 'penstock[postgresql]'"
        ) from e
    return stack.enter_context(Plant(folder))


class _Demo:
    """One run of the demo. Rooms and view are in the calling thread, and the job in its own thread."""

    def __init__(
        self,
        seconds: float,
        sensors: int,
        feed: Feed,
        checkpoint: Path,
        display: Display,
        interrupted: threading.Event,
        began: float,
        watch: Callable[[Snapshot], None] | None,
    ) -> None:
        self._seconds = seconds
        self._feed = feed
        self._checkpoint = str(checkpoint)
        self._display = display
        self._interrupted = interrupted
        self._began = began
        self._watch = watch
        self._rooms = Rooms(sensors)
        self._sent = {READINGS: 0, SETTINGS: 0}
        self._commands = 0
        self._first_command_s: float | None = None
        self._changes: dict[int, _OpenChange] = {}
        self._last_change: _OpenChange | None = None
        self._control_changes = 0
        self._checker: Checker | None = None
        self._violations = 0
        self._lived_s = 0.0

    def run(self) -> DemoSummary:
        """Run the whole demo."""
        self._send(SETTINGS, self._rooms.settings())
        self._send(READINGS, self._rooms.readings())
        self._show(None, "starting")
        with JobThread(self._feed, self._checkpoint) as job:
            while job.progress is None and not self._interrupted.wait(0.1):
                job.check()
                self._show(job, "starting")
            if job.progress is not None:
                self._simulate(job)
                self._drain(job)
            self._show(job, "finishing")
            summary = job.finish()
        self._violations = self._check_all(_last_batch(job))
        self._show(job, "done")
        return self._summary(summary)

    def _simulate(self, job: JobThread) -> None:
        """Simulate the rooms, and change settings, until the time is over."""
        tick_s = max(_TICK_S, len(self._rooms) / _MAX_READINGS_PER_S)
        start = due = last = time.monotonic()
        next_change, next_check = start + _CHANGE_EVERY_S, start + _CHECK_EVERY_S
        with contextlib.ExitStack() as stack:
            evidence = self._feed.evidence(self._checkpoint)
            stack.callback(evidence.close)
            self._checker = Checker(load_fold(), evidence)
            while (now := time.monotonic()) - start < self._seconds:
                job.check()
                self._obey()
                self._rooms.advance(now - last)
                last = now
                if now >= next_change:
                    next_change += _CHANGE_EVERY_S
                    self._change_setting()
                self._send(READINGS, self._rooms.readings())
                if now >= next_check:
                    next_check = now + _CHECK_EVERY_S
                    self._checker.follow(_last_batch(job))
                    self._violations = self._checker.violations(running=True)
                self._lived_s = now - start
                self._show(job, "running")
                due = max(due + tick_s, time.monotonic())
                if self._interrupted.wait(due - time.monotonic()):
                    break
            self._lived_s = time.monotonic() - start

    def _drain(self, job: JobThread) -> None:
        """Wait until the job has processed everything that was sent, so that every reading can be judged."""
        deadline = time.monotonic() + _PATIENCE_S
        while waiting := self._waiting(job):
            job.check()
            self._obey()
            self._show(job, "finishing")
            if time.monotonic() > deadline:
                raise JobFailedError(
                    f"The job did not process all records within {_PATIENCE_S:.0f} s; {waiting} records remain. "
                    f"See its log: {self._checkpoint}/spark.log"
                )
            time.sleep(0.1)
        self._obey()

    def _waiting(self, job: JobThread) -> int:
        """Return the number of records that the job has not processed yet."""
        processed = {} if job.progress is None else job.progress.records_in
        return sum(sent - processed.get(stream, 0) for stream, sent in self._sent.items())

    def _check_all(self, last_batch: int) -> int:
        """Return the violations over the whole run, with new evidence. Readings that the job never read count too."""
        with contextlib.ExitStack() as stack:
            evidence = self._feed.evidence(self._checkpoint)
            stack.callback(evidence.close)
            checker = Checker(load_fold(), evidence)
            checker.follow(last_batch)
            self._checker = checker
            unread = self._sent[READINGS] - checker.readings if last_batch >= 0 else 0
            return checker.violations() + unread

    def _send(self, stream: str, records: list[Record]) -> None:
        self._feed.send(stream, records)
        self._sent[stream] += len(records)

    def _obey(self) -> None:
        commands = self._feed.new_commands()
        if commands and self._first_command_s is None:
            self._first_command_s = time.monotonic() - self._began
        self._commands += len(commands)
        self._rooms.obey(commands)
        for command in commands:
            change = self._changes.get(command["sensor_id"])
            if change is not None:
                change.answer(command["command"])

    def _change_setting(self) -> None:
        change, setting = self._rooms.change_setting(among=min(self._display.rooms, len(self._rooms)))
        self._send(SETTINGS, [setting])
        self._control_changes += 1
        self._last_change = self._changes[change.sensor_id] = _OpenChange(change, time.monotonic())

    def _show(self, job: JobThread | None, phase: Any) -> None:
        snapshot = self._snapshot(job, phase)
        self._display.show(snapshot)
        if self._watch is not None:
            self._watch(snapshot)

    def _snapshot(self, job: JobThread | None, phase: Any) -> Snapshot:
        shown = min(self._display.rooms, len(self._rooms))
        progress = None if job is None else job.progress
        return Snapshot(
            phase=phase,
            place=self._feed.place,
            elapsed_s=time.monotonic() - self._began if phase == "starting" else self._lived_s,
            seconds=self._seconds,
            rooms=[self._room(place) for place in range(shown)],
            hidden_rooms=len(self._rooms) - shown,
            batches=0 if progress is None else progress.batch_id + 1,
            batch_ms=0.0 if progress is None else progress.batch_ms or 0.0,
            rows_per_s=0.0 if progress is None else progress.rows_per_s,
            readings=0 if progress is None else progress.records_in.get(READINGS, 0),
            commands=self._commands,
            control_changes=self._control_changes,
            last_change=None if self._last_change is None else self._last_change.to_view(),
            judged=0 if self._checker is None else self._checker.readings,
            violations=self._violations,
        )

    def _room(self, place: int) -> Room:
        change = self._changes.get(place + 1)
        return Room(
            sensor_id=place + 1,
            temperature=float(self._rooms.temperature[place]),
            desired=float(self._rooms.desired[place]),
            band=self._rooms.band,
            heating=bool(self._rooms.heating[place]),
            change=None if change is None else change.to_view(),
        )

    def _summary(self, result: RunSummary) -> DemoSummary:
        first = self._first_command_s
        return DemoSummary(
            job_id=result.job_id,
            status=result.status,
            batches=result.batches,
            records_in=result.records_in,
            records_out=result.records_out,
            dead_letters=result.dead_letters,
            state=result.state,
            seconds=round(self._lived_s, 1),
            sensors=len(self._rooms),
            control_changes=self._control_changes,
            first_command_s=None if first is None else round(first, 2),
            violations=self._violations,
        )


def _last_batch(job: JobThread) -> int:
    return -1 if job.progress is None else job.progress.batch_id


class _OpenChange:
    """A control change and its answer, the first command to that heater."""

    def __init__(self, change: SettingChange, at: float) -> None:
        self._change = change
        self._at = at
        self._command = ""
        self._answered_s: float | None = None

    def answer(self, command: str) -> None:
        """Note a command to the heater."""
        if self._answered_s is None:
            self._command, self._answered_s = command, time.monotonic() - self._at

    def to_view(self) -> Change:
        """Return the change in the form that the view shows."""
        ago_s = time.monotonic() - self._at
        change = self._change
        return Change(change.sensor_id, ago_s, change.before, change.after, self._command, self._answered_s)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set an event on Ctrl-C or SIGTERM, for a clean end with a summary. A second Ctrl-C ends the demo at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001  # the signature of a handler
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_summary(summary: DemoSummary, folder: Path) -> None:
    console = Console(highlight=False)
    readings, settings = summary.records_in.get(READINGS, 0), summary.records_in.get(SETTINGS, 0)
    console.print(
        f"{summary.sensors:,} rooms ran for {summary.seconds:.0f} s. The job read {readings:,} readings and "
        f"{settings:,} settings in {summary.batches:,} micro-batches and sent "
        f"{sum(summary.records_out.values()):,} commands.",
        soft_wrap=True,
    )
    first = "none" if summary.first_command_s is None else f"after {summary.first_command_s:.1f} s"
    console.print(f"Control changes: {summary.control_changes}. First command: {first}.")
    colour = "green" if summary.violations == 0 else "red"
    console.print(
        f"Violations: [bold {colour}]{summary.violations}[/] (an independent fold judged every reading again).",
        soft_wrap=True,
    )
    if summary.dead_letters:
        console.print(f"Dead letters: [bold red]{summary.dead_letters}[/].")
    if summary.violations or summary.dead_letters:
        console.print(f"All files of the run are kept in {folder}.", soft_wrap=True)
