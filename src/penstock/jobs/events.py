"""Events: who did what to a job, and with what result. Lines of JSON in its checkpoint, of bounded size.

The file `events.jsonl` is the audit log of a checkpoint. When it is full, it replaces `events.1.jsonl`, and a new file
starts. Commands have receipts already, so the log does not repeat them: readers merge both. docs/metrics.md describes
the events.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import getpass
import heapq
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

import msgspec

from penstock.base.durable import sync_folder, whole_lines_bytes
from penstock.base.version import __version__
from penstock.bindings.secrets import redact, without_secrets
from penstock.commands.command_catalog import read_command_catalog
from penstock.commands.job_receipts import by_batch
from penstock.commands.receipt_segments import NewReceipts, receipts_backwards
from penstock.control.receipts import Receipt
from penstock.errors import CheckpointError, fault_of
from penstock.jobs.job_log import job_log
from penstock.jobs.settings import RunSettings
from penstock.streams.own_streams import RECEIPTS

__all__ = [
    "EVENTS_FILE",
    "OLDER_EVENTS_FILE",
    "Event",
    "EventKind",
    "NewEvents",
    "RunEvents",
    "newest_events",
    "read_events",
    "record_event",
    "settings_of",
    "user_name",
]

EVENTS_FILE: Final = "events.jsonl"
"""The file in a checkpoint that keeps the newest events."""

OLDER_EVENTS_FILE: Final = "events.1.jsonl"
"""The file with older events, once the first file is full."""

EventKind: TypeAlias = Literal[
    "started",
    "evolved",
    "outputs-anew",
    "replanned",
    "rescaled",
    "rescale-failed",
    "savepoint",
    "savepoint-failed",
    "savepoint-deleted",
    "dump",
    "model-suspended",
    "stopped",
    "finished",
    "failed",
    "commands",
]

_ENDS: Final = ("stopped", "finished", "failed")
_POLL_S: Final = 0.2
# About 30,000 events; a job has a few in each run.
_MAX_BYTES: Final = 8 << 20
_SECRET_SETTING: Final = re.compile(
    r"(?i)secret|password|token|credential|jaas|access[.-]?key|account[.-]?key"
)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job, or that a user did to it.

    `by` is the name of the user who did it, or the names of several in alphabetical order; empty if no user did.
    `job_id` is the run in which it happened, empty outside a run. `batch` is the newest micro-batch at that time, None
    if it does not matter.
    """

    at: dt.datetime
    event: EventKind
    job: str
    job_id: str = ""
    by: str = ""
    batch: int | None = None
    details: dict[str, Any] = {}


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Event)


def user_name() -> str:
    """Return the name of this process's user, without anything about the machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user id without a name.
        return str(os.getuid())


def settings_of(settings: RunSettings) -> dict[str, Any]:
    """Return the settings of a run that differ from their defaults, as plain values without secrets."""
    found: dict[str, Any] = {}
    for field in fields(RunSettings):
        value = getattr(settings, field.name)
        if field.name in ("bindings", "checkpoint", "started_by") or value == getattr(
            RunSettings(), field.name
        ):
            continue
        if field.name == "spark_settings":
            value = {name: _mask(name, text) for name, text in sorted(value.items())}
        found[field.name] = redact(value) if isinstance(value, str) else value
    return found


def _mask(name: str, value: str) -> str:
    return "***" if _SECRET_SETTING.search(name) else redact(value)


def record_event(checkpoint: Path, event: Event) -> None:
    """Append an event to the log of a checkpoint, durably. Several processes may do so at once.

    Raises CheckpointError when the event cannot be written.
    """
    path = checkpoint / EVENTS_FILE
    line = _encoder.encode(event) + b"\n"
    try:
        is_new = not path.exists()
        with _open_locked(path) as file:
            end = whole_lines_bytes(file)
            # A crash may have left a torn line. Its writer never returned, so the event does not count.
            os.ftruncate(file, end)
            if os.write(file, line) != len(line):
                os.ftruncate(file, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the system raises it
            os.fsync(file)
            if end + len(line) > _MAX_BYTES:
                path.rename(checkpoint / OLDER_EVENTS_FILE)
                path.touch()
                is_new = True
        if is_new:
            sync_folder(checkpoint)
    except OSError as e:
        raise CheckpointError(
            f"The event {event.event!r} cannot be written to {path} ({e.strerror}). Free some space there."
        ) from e


@contextlib.contextmanager
def _open_locked(path: Path) -> Iterator[int]:
    """Open the log for one writer at a time; create it if it does not exist."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _inode_of(path) == os.fstat(file).st_ino:
                yield file
                return
            # Another writer has filled it meanwhile and renamed it.
        finally:
            os.close(file)


def _inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


class RunEvents:
    """Records the events of one run.

    Args:
        checkpoint: the folder of the checkpoint.
        job: the name of the job.
        job_id: the id of the run.
        by: the user who started it.

    """

    def __init__(self, checkpoint: Path, job: str, job_id: str, by: str) -> None:
        self._checkpoint: Final = checkpoint
        self._job: Final = job
        self._job_id: Final = job_id
        self._by: Final = by

    def record_start(self, details: Mapping[str, Any]) -> None:
        """Record the start of the run. The event names the run before, if that has no event of its end."""
        interrupted = _interrupted_run(read_events(self._checkpoint))
        more = {"version": __version__} | ({"interrupted": interrupted} if interrupted else {})
        self.add("started", {**details, **more})

    def add(
        self, kind: EventKind, details: Mapping[str, Any], *, by: str | None = None, batch: int | None = None
    ) -> None:
        """Record an event; `by` defaults to the user who started the run. Raises CheckpointError."""
        event = Event(
            at=dt.datetime.now(dt.UTC),
            event=kind,
            job=self._job,
            job_id=self._job_id,
            by=self._by if by is None else by,
            batch=batch,
            details=dict(details),
        )
        record_event(self._checkpoint, event)

    @contextlib.contextmanager
    def record_failure(self) -> Iterator[None]:
        """Record the error that the body raises, and raise it again."""
        try:
            yield
        except BaseException as e:
            fault = fault_of(e)
            details = {"error": type(e).__name__, "fault": fault, "reason": without_secrets(str(e))}
            try:
                self.add("failed", details, by="")
            except CheckpointError as unwritten:
                # The error itself says more than that it cannot be recorded.
                job_log.warning("%s", unwritten)
            raise


def read_events(checkpoint: Path) -> list[Event]:
    """Read all recorded events, oldest first. Raises CheckpointError when they cannot be read."""
    return NewEvents(checkpoint, with_commands=False, from_start=True).read()


class NewEvents:
    """Events that come after its creation; with `from_start` the existing ones come first.

    With `with_commands` there is also an event `commands` for each micro-batch with receipts, which sums them up.
    """

    def __init__(self, checkpoint: Path, *, with_commands: bool = True, from_start: bool = False) -> None:
        self._checkpoint: Final = checkpoint
        self._path: Final = checkpoint / EVENTS_FILE
        self._older: Final = checkpoint / OLDER_EVENTS_FILE
        self._with_commands: Final = with_commands
        self._inode: int | None = None
        self._offset = 0
        self._receipts: Final = NewReceipts(checkpoint, from_start=from_start)
        if not from_start:
            self._lines()

    def read(self) -> list[Event]:
        """Return the events since the last call, oldest first. Raises CheckpointError when they cannot be read."""
        lines = self._lines()
        try:
            found = [_decoder.decode(line) for line in lines]
        except msgspec.MsgspecError as e:
            raise CheckpointError(f"The events in {self._path} cannot be read: {e}. Restore the file.") from e
        if self._with_commands:
            for name, receipts in self._receipts.by_segment():
                found += [
                    _sum_up_commands(self._checkpoint, name, of_batch) for _, of_batch in by_batch(receipts)
                ]
            found.sort(key=lambda event: event.at)
        return found

    def follow(self, on_event: Callable[[Event], None]) -> None:
        """Pass on each event as it arrives, until the caller interrupts this."""
        while True:
            for event in self.read():
                on_event(event)
            time.sleep(_POLL_S)

    def _lines(self) -> list[bytes]:
        """Return the new whole lines; if a new file has started, also those of the one before it."""
        try:
            while True:
                with contextlib.ExitStack() as stack:
                    # After a crash between the renaming and the start of a new file there is only the older one.
                    file = _open(self._path, stack) or _open(self._older, stack)
                    if file is None:
                        return []
                    inode = os.fstat(file.fileno()).st_ino
                    before: list[bytes] = []
                    if inode != self._inode:
                        older = _open(self._older, stack)
                        older_inode = None if older is None else os.fstat(older.fileno()).st_ino
                        if older_inode == inode and self._path.exists():
                            # A writer has renamed it just now.
                            continue
                        if older is not None and older_inode != inode:
                            before, _ = _whole_lines(older, self._offset if older_inode == self._inode else 0)
                        self._inode, self._offset = inode, 0
                    lines, self._offset = _whole_lines(file, self._offset)
                    return before + lines
        except OSError as e:
            raise CheckpointError(
                f"The events in {self._path} cannot be read: {e.strerror}. Check the disk and the file's permissions."
            ) from e


def _open(path: Path, stack: contextlib.ExitStack) -> IO[bytes] | None:
    try:
        return stack.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _whole_lines(file: IO[bytes], offset: int) -> tuple[list[bytes], int]:
    """Return the whole lines of a file from an offset on, and the offset of their end."""
    file.seek(offset)
    data = file.read()
    size = data.rfind(b"\n") + 1
    return data[:size].split(b"\n")[:-1], offset + size


def newest_events(checkpoint: Path, most: int, *, with_commands: bool = True) -> list[Event]:
    """Return the newest events, oldest first. Decodes no more receipts than needed. Raises CheckpointError."""
    recorded = reversed(read_events(checkpoint))
    commands: Iterator[Event] = iter(())
    if with_commands:
        commands = _commands_backwards(checkpoint)
    both = heapq.merge(recorded, commands, key=lambda event: event.at, reverse=True)
    return list(itertools.islice(both, most))[::-1]


def _commands_backwards(checkpoint: Path) -> Iterator[Event]:
    """Yield an event `commands` for each micro-batch with receipts, newest first."""
    found = receipts_backwards(checkpoint)
    for (_, name), group in itertools.groupby(found, key=lambda one: (one[1].batch, one[0])):
        yield _sum_up_commands(checkpoint, name, [receipt for _, receipt in group][::-1])


def _sum_up_commands(checkpoint: Path, name: str, receipts: Sequence[Receipt]) -> Event:
    """Sum up the receipts of a micro-batch in an event; `name` is the segment that has them."""
    outcomes = {"applied": 0, "degraded": 0, "rejected": 0}
    for receipt in receipts:
        if receipt.status.lower() in outcomes:
            outcomes[receipt.status.lower()] += 1
    return Event(
        at=receipts[0].at,
        event="commands",
        job=read_command_catalog(checkpoint).job,
        by=", ".join(sorted({receipt.issued_by for receipt in receipts if receipt.issued_by})),
        batch=receipts[0].batch,
        details={
            **outcomes,
            "kinds": sorted({receipt.kind for receipt in receipts}),
            "receipts": f"{RECEIPTS}/{name}",
        },
    )


def _interrupted_run(events: list[Event]) -> str:
    """Return the newest run if it has no event of its end, else an empty string."""
    started = next((event.job_id for event in reversed(events) if event.event == "started"), "")
    ended = {event.job_id for event in events if event.event in _ENDS}
    return "" if started in ended else started
