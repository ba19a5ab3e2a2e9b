"""Service: the interface of the job manager for REST, dashboard and command line. Clients send ids, never paths."""

from __future__ import annotations

import codecs
import dataclasses
import datetime as dt
import os
import re
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.commands.command_catalog import CommandCatalog
from penstock.commands.command_sender import command_binding, send_command
from penstock.control.commands import Command
from penstock.errors import ExternalSystemError, JobDefinitionError, JobStateError, StoreError, UnknownIdError
from penstock.savepoints.savepoints import dispose, list_savepoints, new_id
from penstock.server.lifecycle.restarts import parse_strategy, strategy_text
from penstock.server.lifecycle.statuses import ENDED, Desired, JobStatus
from penstock.server.runs.definitions import Catalog, apply_changes
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.dumps import Dump, archive_of_dump, delete_dump, list_dumps, read_dump
from penstock.server.runs.processes import OUTPUT_FILE, PROGRESS_FILE, is_alive
from penstock.server.runs.retention import delete_job_files
from penstock.server.service.job_resources import (
    Definition,
    Definitions,
    Job,
    Log,
    Operation,
    Run,
    Savepoint,
    SavepointDetails,
    SnapshotTable,
    Submission,
    add_last_decision,
    job_of,
    mask_bindings,
    mask_settings,
    operation_of,
    run_of,
)
from penstock.server.service.job_views import JobViews, resolve_place
from penstock.server.store.row_types import Event, NewJob, Stop
from penstock.server.store.store import Store
from penstock.server.store.user_requests import Asked, new_operation_id
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store
from penstock.snapshots.table_formats import SnapshotFormat
from penstock.streams.graph import COMMANDS

__all__ = ["Dump", "Event", "JobService"]


_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_OUTPUT_BYTES: Final = 1 << 20
_LONGEST_TARGET: Final = 1000


class JobService:
    """The operations of users on jobs. `reader` reads the internals of jobs.

    `who` is the user, for the audit log. A request repeated with the same `key` is executed once. Raises UnknownIdError
    for an unknown id, JobStateError if the status of the job does not allow the operation, IdempotencyError if the key
    was used for another request, JobDefinitionError for invalid settings, StoreError if the store cannot be used.
    """

    def __init__(self, store: Store, catalog: Catalog, home: ServerDirectory) -> None:
        self._store: Final = store
        self._catalog: Final = catalog
        self._home: Final = home
        self.reader: Final = JobViews(store)

    # Reading

    def definitions(self) -> Definitions:
        """Return the jobs that can be submitted, and the files that fail to define one."""
        found, problems = self._catalog.definitions()
        items = (
            Definition(
                id=d.id, name=d.name, bindings=mask_bindings(d.settings), settings=mask_settings(d.settings)
            )
            for d in found.values()
        )
        return Definitions(items=tuple(items), problems=tuple(problems))

    def list_jobs(
        self,
        statuses: Collection[JobStatus] = tuple(JobStatus),
        limit: int = 1000,
        after: tuple[int, str] | None = None,
    ) -> list[Job]:
        """Return the jobs with one of the statuses, newest first, without their progress.

        `after` is the creation time and id of a job; only jobs after it in the list are returned.
        """
        return [job_of(job) for job in self._store.jobs(statuses, limit, after)]

    def get(self, job_id: str) -> Job:
        """Return a job, with its progress and last scaling decision."""
        job = self._store.job(job_id)
        path = self._home.run(job.id, job.epoch) / PROGRESS_FILE
        try:
            progress = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            progress = None
        found = job_of(job)
        scaling = found.scaling and add_last_decision(found.scaling, self._home.scaling(job.id))
        return dataclasses.replace(found, progress=progress, scaling=scaling)

    def checkpoint(self, job_id: str) -> Path:
        """Return the checkpoint folder of a job, for the parts of penstock that read it."""
        return self._store.job(job_id).folder

    def runs(self, job_id: str) -> list[Run]:
        """Return the runs of a job, newest first."""
        self._store.job(job_id)
        return [run_of(row) for row in self._store.runs(job_id)]

    def log(
        self, job_id: str, run: int | None = None, max_bytes: int = 65536, begin: int | None = None
    ) -> Log:
        """Return output of a run, by default the newest: from byte `begin` on, or else its end."""
        job = self._store.job(job_id)
        if run is None and job.epoch == 0:
            return Log(run=0, text="", end=0)
        number = self._store.run(job.id, job.epoch if run is None else run).epoch
        try:
            with (self._home.run(job.id, number) / OUTPUT_FILE).open("rb") as file:
                size = file.seek(0, 2)
                most = min(max_bytes, _MAX_OUTPUT_BYTES)
                place = file.seek(max(0, size - most) if begin is None else min(begin, size))
                if place < size:
                    # The beginning of long output is a hole: skip it.
                    place = file.seek(place, os.SEEK_DATA)
                content = file.read(most)
        except FileNotFoundError:
            return Log(run=number, text="", end=0)
        # An incomplete character at the end is left for the next call.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = decoder.decode(content)
        return Log(run=number, text=text, end=place + len(content) - len(decoder.getstate()[0]))

    def operation(self, operation_id: str) -> Operation:
        """Return an operation."""
        return operation_of(self._store.operation(operation_id))

    def events(self, job_id: str | None = None, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events after another one, of one job or of all, oldest first."""
        if job_id is not None:
            self._store.job(job_id)
        return self._store.events(job_id, after, limit)

    def savepoints(self) -> list[Savepoint]:
        """Return the savepoints that jobs can start from, oldest first."""
        return [
            Savepoint(id=m.id or "", job_name=m.job, batch=m.batch, created_at=m.created_at, uri=place)
            for place, m in list_savepoints(self._home.savepoints)
        ]

    def savepoint_details(self, savepoint_id: str) -> SavepointDetails:
        """Return a savepoint with its tables, source positions, and the unfinished jobs that started from it."""
        found = self._savepoint(savepoint_id)
        manifest = read_manifest(open_store(found.uri))
        tables = tuple(
            SnapshotTable(
                name=table.name,
                step=table.step,
                kind=table.kind,
                rows=table.rows,
                bytes=sum(file.bytes for file in table.files),
            )
            for table in manifest.tables
            if table.kind != "internal"
        )
        files = [*manifest.files, *(file for table in manifest.tables for file in table.files)]
        return SavepointDetails(
            **dataclasses.asdict(found),
            key_groups=manifest.key_groups,
            rows=sum(table.rows for table in tables),
            bytes=sum(file.bytes for file in files),
            tables=tables,
            positions=manifest.positions,
            used_by=self._jobs_from(found),
        )

    def dumps(self) -> list[Dump]:
        """Return the dumps, in the order of their ids."""
        return list_dumps(self._home)

    def dump_archive(self, dump_id: str) -> Iterator[bytes]:
        """Return the files of a dump as a zip archive, in chunks."""
        return archive_of_dump(self._home, dump_id)

    # Changing

    def submit(self, submission: Submission, who: str, key: str | None = None) -> Operation:
        """Submit a job. The returned operation is DONE; its result has the id of the job."""
        if submission.continues is not None and submission.from_savepoint is not None:
            raise JobDefinitionError(
                f"A job that continues {submission.continues} starts from its checkpoint, so it cannot also start from "
                "a savepoint. Leave out continues or from_savepoint."
            )
        definition = self._catalog.definition(submission.definition)
        settings = apply_changes(definition.settings, submission)
        if submission.from_savepoint is not None:
            place = self._savepoint(submission.from_savepoint).uri
            settings = settings.model_copy(update={"from_savepoint": place, "from_dump": None})
        name = submission.name or definition.name
        job_id = f"{_NOT_IN_NAMES.sub('-', name)[:40].strip('-.')}-{uuid.uuid4().hex[:8]}"
        job = NewJob(
            id=job_id,
            name=name,
            definition=definition.id,
            settings=settings.model_dump(),
            checkpoint=self._checkpoint_for(job_id, submission),
            restart=strategy_text(parse_strategy(settings.restart)),
        )
        asked = Asked(who, "submit", submission.model_dump(exclude_none=True), key)
        return operation_of(self._store.submit(job, asked))

    def cancel(self, job_id: str, who: str, key: str | None = None) -> Operation:
        """Cancel a job at once, even within a micro-batch. A job that continues it processes that micro-batch again."""
        return operation_of(self._store.set_desired(job_id, Desired.CANCELED, Asked(who, "cancel", {}, key)))

    def stop(
        self, job_id: str, who: str, key: str | None = None, *, savepoint: bool = False, drain: bool = False
    ) -> Operation:
        """Stop a job between two micro-batches, optionally with a savepoint.

        With `drain`, the job first processes all records that have arrived. The result has the micro-batch, and the id
        and URI of the savepoint, if any.
        """
        operation_id = new_operation_id()
        stop = Stop(operation_id, drain=drain)
        if savepoint:
            name = new_id(dt.datetime.now(dt.UTC))
            stop = Stop(operation_id, name, f"{self._home.savepoints}/{name}", drain)
        asked = Asked(who, "stop", {"savepoint": savepoint, "drain": drain}, key)
        return operation_of(self._store.set_desired(job_id, Desired.FINISHED, asked, stop))

    def pause(self, job_id: str, who: str, key: str | None = None) -> Operation:
        """Pause a job: its driver ends until the job is resumed."""
        return operation_of(self._store.set_desired(job_id, Desired.PAUSED, Asked(who, "pause", {}, key)))

    def resume(self, job_id: str, who: str, key: str | None = None) -> Operation:
        """Resume a paused job from its checkpoint."""
        return operation_of(self._store.set_desired(job_id, Desired.RUNNING, Asked(who, "resume", {}, key)))

    def delete(self, job_id: str, who: str, *, checkpoint: bool = False) -> None:
        """Delete a job that has ended, optionally with its checkpoint. Its events and savepoints stay.

        Raises JobStateError if it has not ended, its driver is still alive, or another job uses the checkpoint to be
        deleted. Raises StoreError if some files cannot be deleted.
        """
        found = self._store.job(job_id)
        if is_alive(self._home.run(job_id, found.epoch)):
            raise JobStateError(f"The driver of the job {job_id} is still ending. Try again in a moment.")
        job = self._store.delete(job_id, who, checkpoint=checkpoint)
        try:
            delete_job_files(self._home, job.id, job.epoch, job.checkpoint if checkpoint else None)
        except (OSError, ExternalSystemError) as e:
            why = e.strerror if isinstance(e, OSError) else e
            raise StoreError(
                f"The job {job_id} is deleted, but some of its files are not ({why}). Delete the rest in the manager's "
                "folder, or on the store of the checkpoint."
            ) from e

    def savepoint(self, job_id: str, who: str, key: str | None = None) -> Operation:
        """Take a savepoint of a running job, which continues, or of the checkpoint of a job that is not running.

        The result has the id and URI of the savepoint. Raises JobStateError if the job was never started.
        """
        return self._request_of_state(job_id, Asked(who, "savepoint", {}, key))

    def dump(
        self, job_id: str, who: str, key: str | None = None, *, form: SnapshotFormat, batch: int | None = None
    ) -> Operation:
        """Dump the state of a running job, which continues, or of the checkpoint of a job that is not running.

        The result has the id of the dump. Raises JobStateError if the job was never started.
        """
        return self._request_of_state(job_id, Asked(who, "dump", {"format": form, "batch": batch}, key))

    def _request_of_state(self, job_id: str, asked: Asked) -> Operation:
        if self._store.job(job_id).epoch == 0:
            raise JobStateError(
                f"The job {job_id} was never started, so it has no state. Ask again after its first micro-batch."
            )
        return operation_of(self._store.begin_operation(job_id, asked))

    def delete_dump(self, dump_id: str, who: str) -> None:
        """Delete a dump permanently."""
        found = read_dump(self._home, dump_id)
        self._store.add_event(found.job, "asked for: delete dump", {"dump": found.id}, who)
        delete_dump(self._home, found.id)

    def delete_savepoint(self, savepoint_id: str, who: str) -> None:
        """Delete a savepoint permanently. Raises JobStateError while a job that started from it has not ended."""
        found = self._savepoint(savepoint_id)
        users = self._jobs_from(found)
        if users:
            raise JobStateError(
                f"The job {users[0]} started from the savepoint {found.id}, and has not ended. Stop or cancel "
                "the job first."
            )
        self._store.add_event(None, "asked for: delete savepoint", {"savepoint": found.id}, who)
        dispose(found.uri)

    def send_command(self, job_id: str, command: Command, entry: CommandCatalog) -> None:
        """Send a command to a job on behalf of its issuer. `entry` is the command catalog of the job.

        The audit log gets the command without its payload, which may contain a secret. Raises BindingError or
        ExternalSystemError if the command cannot be sent.
        """
        job = self._store.job(job_id)
        place = resolve_place(job, COMMANDS, entry.commands)
        binding = command_binding(entry, None if place == entry.commands else place)
        detail = {
            "command": command.id,
            "kind": command.kind,
            "target": str(command.target)[:_LONGEST_TARGET],
            "version": command.version,
        }
        self._store.add_event(job_id, "asked for: command", detail, command.issued_by)
        send_command(command, binding)

    def rescale(self, job_id: str, parallelism: int, who: str, key: str | None = None) -> Operation:
        """Change the parallelism of a job. The result states how long the job was interrupted."""
        if not 1 <= parallelism <= 32768:
            raise JobDefinitionError(f"The parallelism is {parallelism}; it must be from 1 to 32768.")
        job = self._store.job(job_id)
        if job.status in ENDED:
            raise JobStateError(
                f"The job {job_id} is {job.status}. Only a job that has not ended can be rescaled."
            )
        asked = Asked(who, "rescale", {"parallelism": parallelism}, key)
        return operation_of(self._store.begin_operation(job_id, asked))

    def _savepoint(self, savepoint_id: str) -> Savepoint:
        found = {savepoint.id: savepoint for savepoint in self.savepoints()}
        if savepoint_id not in found:
            raise UnknownIdError(
                f"There is no savepoint {savepoint_id!r}. Available savepoints: {', '.join(found) or 'none'}."
            )
        return found[savepoint_id]

    def _jobs_from(self, savepoint: Savepoint) -> tuple[str, ...]:
        """Return the unfinished jobs that started from a savepoint."""
        live = self._store.live_jobs()
        return tuple(job.id for job in live if job.settings.get("from_savepoint") == savepoint.uri)

    def _checkpoint_for(self, job_id: str, submission: Submission) -> str:
        if submission.continues is None:
            return self._home.checkpoint(job_id)
        before = self._store.job(submission.continues)
        if before.status not in ENDED:
            raise JobStateError(
                f"The job {before.id} is {before.status}. Only a job that has ended can be continued."
            )
        return before.checkpoint
