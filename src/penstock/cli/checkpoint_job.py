"""Checkpoint jobs: a job reached by its checkpoint on this machine."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.bindings.secrets import redact
from penstock.bindings.types import FilesBinding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.state_files import state_target
from penstock.checkpoints.state_place import state_place
from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.cli.job_target import CommandDraft, JobEvent, Outcome, Patience, ScalingAdvice
from penstock.cli.output import escape, stderr
from penstock.cli.times import format_instant
from penstock.commands.command_catalog import read_command_catalog
from penstock.commands.command_sender import command_binding, find_waiting, send_command
from penstock.commands.command_target import check_known, parse_target
from penstock.commands.listed_models import list_models
from penstock.commands.receipt_history import (
    CommandFilter,
    CommandHistory,
    await_end,
    find_history,
    find_newest_histories,
)
from penstock.commands.receipt_segments import NewReceipts
from penstock.control.commands import Command
from penstock.control.receipts import Receipt
from penstock.errors import CheckpointError, CommandRefusedError
from penstock.jobs.events import Event, EventKind, NewEvents, newest_events, record_event, user_name
from penstock.jobs.requests import Request, ask, is_running, new_request, no_run_here
from penstock.metrics.batch_metrics import BatchMetricsTail, newest_batch_metrics
from penstock.metrics.job_metrics import measure_job
from penstock.server.service.metrics_resources import Metrics, metrics_of

if TYPE_CHECKING:
    from penstock.queries.locked_engine import QueryLimits
    from penstock.queries.query_answers import AnswerContent
    from penstock.savepoints.state_pages import StoredKey
    from penstock.scaling.policy import ScalingPolicy
    from penstock.snapshots.manifest import Manifest

__all__ = ["CheckpointJob"]

_LINES_S: Final = 0.2


class CheckpointJob:
    """A job reached by the folder of its checkpoint, whether it runs or not.

    The folder may be a copy, which can only be read, of a checkpoint on an object store.
    """

    def __init__(self, folder: Path, copy_of: str | None = None) -> None:
        self._folder: Final = folder
        self._copy_of: Final = copy_of
        self._checkpoint: Final = Checkpoint(folder)
        self._new_receipts: NewReceipts | None = None
        self._look_back = False

    @property
    def title(self) -> str:
        """The name of the job."""
        return self._checkpoint.known_lineage().job

    # -- metrics and events --

    def metrics(self, window_s: float) -> Metrics:
        """Measure the metrics in the checkpoint."""
        self._checkpoint.check_begun()
        found = measure_job(self._folder, window_s, is_running=is_running(self._folder))
        return metrics_of(found, [] if found.newest is None else [found.newest])

    def metrics_content(self, window_s: float, *, watch: bool) -> Iterator[Any]:
        """Yield rates and metrics, then the metrics of each micro-batch."""
        self._checkpoint.check_begun()
        found = measure_job(self._folder, window_s, is_running=is_running(self._folder))
        yield {"running": found.is_running, "rates": found.rates, "metrics": found.newest}
        if watch:
            new = BatchMetricsTail(self._folder)
            while True:
                yield from new.read()
                time.sleep(_LINES_S)

    def exposition(self) -> str:
        """Return the newest metrics, or nothing before the first micro-batch."""
        from penstock.metrics.exposition import ExposedJob, exposition

        self._checkpoint.check_begun()
        newest = newest_batch_metrics(self._folder)
        if newest is None:
            return ""
        return exposition([ExposedJob(newest, is_running(self._folder))]).decode()

    def events(
        self, limit: int, show: Callable[[JobEvent], None], *, with_commands: bool, follow: bool
    ) -> None:
        """Show the events in the checkpoint."""
        self._checkpoint.check_begun()
        # Made first, so that no event is missed between the two.
        new = NewEvents(self._folder, with_commands=with_commands) if follow else None
        for event in newest_events(self._folder, limit, with_commands=with_commands):
            show(_job_event(event))
        if new is not None:
            new.follow(lambda event: show(_job_event(event)))

    def advise(self, window_s: float, cores: int | None, policy: ScalingPolicy | None) -> ScalingAdvice:
        """Advise from the metrics in the checkpoint, by the given policy."""
        from penstock.scaling.checkpoint_advice import advice_on

        return ScalingAdvice(*advice_on(self._folder, policy, window_s, cores), policy is not None)

    # -- commands --

    def send(self, draft: CommandDraft) -> dict[str, Any]:
        """Write the command to where the job reads it."""
        catalog = read_command_catalog(self._folder)
        binding = command_binding(catalog, draft.commands_uri)
        if isinstance(binding, FilesBinding):
            self._check_original()
        command = Command(
            id=draft.new_id if draft.id is None else draft.id,
            kind=draft.kind,
            target=parse_target(draft.target, draft.keys, catalog),
            version=draft.version,
            issued_by=draft.issued_by,
            issued_at=draft.issued_at,
            effective_at=draft.effective_at,
            expires_at=draft.expires_at,
            apply=draft.apply,
            payload=draft.payload,
        )
        check_known(command, catalog)
        # Made first, so that no receipt is missed between the two.
        self._new_receipts = NewReceipts(self._folder)
        # Only an id that was chosen can have receipts from before.
        self._look_back = draft.id is not None
        send_command(command, binding)
        return {
            "id": command.id,
            "status": "SENT",
            "kind": command.kind,
            "target": str(command.target),
            "version": command.version,
            "issued_by": command.issued_by,
            "commands": redact(binding.uri),
        }

    def await_final(
        self, command_id: str, timeout_s: float, show: Callable[[Receipt], None]
    ) -> Receipt | None:
        """Read receipts in the checkpoint as they come."""
        assert self._new_receipts is not None
        return await_end(self._new_receipts, command_id, timeout_s, show, look_back=self._look_back)

    def history_of(self, command_id: str) -> CommandHistory | None:
        """Look through the receipts, then through the commands that wait."""
        catalog = read_command_catalog(self._folder)
        found = find_history(self._folder, command_id)
        if found is not None or find_waiting(command_id, catalog, self._folder) is not None:
            return found
        # A command that was waiting a moment ago may have its receipts by now.
        found = find_history(self._folder, command_id)
        if found is None:
            looked = (
                f" Commands that wait in {catalog.commands} were not searched."
                if "://" in catalog.commands
                else ""
            )
            raise CommandRefusedError(
                f"The id {command_id!r} is unknown: no command with this id has a receipt.{looked}"
            )
        return found

    def histories(self, step: str | None, kind: str | None, limit: int) -> list[CommandHistory]:
        """Look through the receipts."""
        return find_newest_histories(
            self._folder, CommandFilter(read_command_catalog(self._folder), step, kind), limit
        )

    # -- models and state --

    def list_models(self) -> list[dict[str, Any]]:
        """Read the models and their versions."""
        found: list[dict[str, Any]] = msgspec.to_builtins(list_models(self._folder))
        return found

    def list_states(self) -> list[dict[str, Any]]:
        """Read the description of the state."""
        from penstock.checkpoints.described_state import read_described
        from penstock.savepoints.state_listing import list_steps

        return list_steps(self._folder, read_described(self._folder))

    def find_key(self, step: str, key: str, batch: int | None) -> StoredKey | None:
        """Read the stored state of the key's slot, without Spark."""
        from penstock.checkpoints.described_state import read_described
        from penstock.savepoints.state_pages import KeysWanted, key_page

        self._checkpoint.known_lineage()
        wanted = KeysWanted(step=step, key=key, batch=batch, max_bytes=sys.maxsize)
        return next(iter(key_page(self._checkpoint, read_described(self._folder), wanted).items), None)

    def query(self, sql: str, limits: QueryLimits) -> AnswerContent:
        """Read the state that the query names, without Spark."""
        from penstock.queries.job_tables import query_job

        self._checkpoint.known_lineage()
        return query_job(str(self._folder), sql, limits).content()

    def dump(self, to: str, form: str, batch: int | None, patience: Patience) -> Outcome:  # noqa: ARG002  # as JobTarget
        """Dump the state to any folder or address."""
        return self._take_snapshot("dump", to, form, batch=batch)

    def take_savepoint(self, to: str | None, patience: Patience) -> Outcome:  # noqa: ARG002  # as JobTarget
        """Take a savepoint, by default beside the checkpoint."""
        name, uri = self._new_savepoint(to)
        return self._take_snapshot("savepoint", uri, "arrow", name=name)

    def list_savepoints(self, place: str | None) -> list[dict[str, Any]]:
        """List the savepoints in a folder or at an address, by default beside the checkpoint."""
        from penstock.savepoints.savepoints import list_savepoints, savepoints_root

        return [
            {"id": m.id, "job": m.job, "batch": m.batch, "created_at": m.created_at, "uri": uri}
            for uri, m in list_savepoints(place or savepoints_root(self._folder))
        ]

    def delete_savepoint(self, called: str) -> str:
        """Delete the files of a savepoint."""
        from penstock.savepoints.savepoints import dispose, place_of

        place = place_of(called, self._folder)
        count = dispose(place)
        self._note_event("savepoint-deleted", {"uri": redact(place)})
        return f"{place}, {count} files"

    # -- operations --

    def stop(self, to: str | None, patience: Patience, *, savepoint: bool, drain: bool) -> Outcome:
        """Ask the run that uses the checkpoint to stop."""
        self._check_original()
        self._checkpoint.known_lineage()
        if not is_running(self._folder):
            raise CheckpointError(
                f"No job runs on {self._folder}. Its state is in the checkpoint; penstock savepoint takes "
                "a savepoint of it."
            )
        name, uri = self._new_savepoint(to) if savepoint else (None, None)
        if uri is not None:
            self._check_reached(uri)
        request = new_request("stop", savepoint=uri, savepoint_id=name, drain=drain, by=user_name())
        return self._ask(request, patience)

    def _check_original(self) -> None:
        """Raise CheckpointError for a copy of the checkpoint, since no run reads requests in it."""
        if self._copy_of is not None:
            raise no_run_here(self._copy_of)

    @property
    def _store(self) -> str:
        """The kind of store on which the state is, "" if it is in the folder."""
        target = state_target(self._folder)
        return "" if target is None else target.family

    @property
    def _is_apart(self) -> bool:
        """Whether the state is on an object store."""
        return state_place(self._folder) is not None

    def _check_reached(self, uri: str) -> None:
        """Raise CheckpointError if the tasks of the run cannot write a savepoint there."""
        if self._is_apart and not is_stored(uri):
            raise CheckpointError(
                f"The tasks of the job write its savepoint, and need not reach the folder {uri}. Name a place on an "
                "object store with --savepoint-path, or use penstock savepoint, which writes it on this machine."
            )

    def rescale(self, parallelism: int, patience: Patience) -> Outcome:
        """Ask the run that uses the checkpoint to rescale; without one change the checkpoint here."""
        self._check_original()
        self._checkpoint.known_lineage()
        if is_running(self._folder):
            return self._ask(new_request("rescale", parallelism=parallelism, by=user_name()), patience)
        return self._rescale_offline(parallelism)

    def _ask(self, request: Request, patience: Patience) -> Outcome:
        return Outcome(ask(self._folder, request, patience.timeout_s))

    def _rescale_offline(self, parallelism: int) -> Outcome:
        import threading

        from penstock.checkpoints.ownership import Ownership, lock_checkpoint
        from penstock.checkpoints.stored_home import home_of
        from penstock.savepoints.rescaling import finish_rescaling
        from penstock.savepoints.rescaling import rescale as rescale_checkpoint
        from penstock.spark.reading_session import reading_session

        home = home_of(self._folder)
        if home is not None:
            raise CheckpointError(
                f"The checkpoint has its home on an object store, {home.shown}, which only a run changes. Start the "
                "job, and rescale it then."
            )
        with lock_checkpoint(self._folder, threading.Event(), 0):
            finish_rescaling(self._checkpoint)
            before = self._checkpoint.stored_lineage()
            # Where locks do not reach, a run on another machine must learn that the checkpoint is not its own any more.
            Ownership.take(self._folder)
            with reading_session(gives_way=False) as session:
                begun_s = time.monotonic()
                after = rescale_checkpoint(session, self._checkpoint, parallelism)
                seconds = time.monotonic() - begun_s
        details = {
            "seconds": round(seconds, 2),
            "before": 0 if before is None else before.parallelism,
            "after": after.parallelism,
            "batch": after.first_batch - 1,
        }
        self._note_event("rescaled", details)
        return Outcome(details)

    # -- snapshots --

    def _new_savepoint(self, to: str | None) -> tuple[str, str]:
        """Return the id of a new savepoint, and its place."""
        from penstock.savepoints.savepoints import new_id, savepoints_root

        name = new_id(dt.datetime.now(dt.UTC))
        root = to or savepoints_root(self._folder)
        if "://" not in root and not root.startswith("file:"):
            # The job may have another working folder.
            root = str(Path(root).expanduser().absolute())
        return name, f"{root.rstrip('/')}/{name}"

    def _take_snapshot(
        self, kind: Any, uri: str, form: Any, *, batch: int | None = None, name: str | None = None
    ) -> Outcome:
        from penstock.savepoints.snapshot_capture import Capture, capture, check_committed
        from penstock.spark.reading_session import reading_session

        self._checkpoint.known_lineage()
        check_committed(self._checkpoint, batch)
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds") if kind == "savepoint" else None
        with (
            stderr.status("Starting Spark ..."),
            reading_session(store=self._store) as session,
        ):
            begun_s = time.monotonic()
            manifest = capture(session, self._checkpoint, Capture(kind, uri, form, name, batch, now))
            seconds = time.monotonic() - begun_s
        details = {"id": manifest.id, "uri": redact(uri), "format": form}
        self._note_event(kind, details, manifest.batch)
        return _snapshot_outcome(manifest, uri, seconds)

    def _note_event(self, kind: EventKind, details: dict[str, Any], batch: int | None = None) -> None:
        """Record in the checkpoint who did what. A failure to record it undoes nothing."""
        try:
            lineage = self._checkpoint.stored_lineage()
            # Savepoints outlive their checkpoints.
            if lineage is not None:
                now, by = dt.datetime.now(dt.UTC), user_name()
                event = Event(at=now, event=kind, job=lineage.job, by=by, batch=batch, details=details)
                record_event(self._folder, event)
        except CheckpointError as e:
            stderr.print(f"[yellow]Note:[/] {escape(str(e))}", soft_wrap=True)


def _job_event(event: Event) -> JobEvent:
    batch = () if event.batch is None else (f"batch {event.batch}",)
    who = (event.by or "-", event.job_id or "-")
    return JobEvent(event, (format_instant(event.at), f"{event.event:<17}", *who, *batch), event.details)


def _snapshot_outcome(manifest: Manifest, uri: str, seconds: float) -> Outcome:
    tables = {table.name: table.rows for table in manifest.tables if table.kind != "internal"}
    rows = sum(tables.values())
    notes = (
        *(f"  {name}: {count:,} rows" for name, count in tables.items()),
        f"The {manifest.kind} of micro-batch {manifest.batch} is in {uri}: {rows:,} rows in {seconds:.1f} s.",
    )
    details = {
        "kind": manifest.kind,
        "id": manifest.id,
        "uri": uri,
        "batch": manifest.batch,
        "rows": rows,
        "digest": manifest.digest,
        "seconds": round(seconds, 2),
        "tables": tables,
    }
    return Outcome(details, notes=notes)
