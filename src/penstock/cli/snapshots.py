"""Snapshots of checkpoints: taken, noted in the job's events, and told; for all commands that do so."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.bindings.secrets import redacted
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.cli.output import Output, escaped, print_json, stderr
from penstock.errors import CheckpointError

if TYPE_CHECKING:
    from penstock.jobs.events import EventKind
    from penstock.snapshots.manifest import Manifest


__all__ = ["NO_PLACES", "new_savepoint", "note_event", "opened_checkpoint", "print_snapshot", "take_snapshot"]


NO_PLACES: Final = (
    "names a place, which no client of a server may do; the server has a place for savepoints. Leave it out."
)


def opened_checkpoint(checkpoint: Path) -> Checkpoint:
    """The checkpoint in a folder. CheckpointError when no job was started with it."""
    found = Checkpoint(checkpoint.expanduser().absolute())
    found.known_lineage()
    return found


def new_savepoint(checkpoint: Path, to: str | None) -> tuple[str, str]:
    """The id of a new savepoint, and its place."""
    from penstock.savepoints.savepoints import new_id, savepoints_folder

    name = new_id(dt.datetime.now(dt.UTC))
    root = to or str(savepoints_folder(checkpoint.expanduser().absolute()))
    if "://" not in root and not root.startswith("file:"):
        # The job may have another working folder.
        root = str(Path(root).expanduser().absolute())
    return name, f"{root.rstrip('/')}/{name}"


def take_snapshot(
    checkpoint: Path, kind: Any, uri: str, form: Any, *, batch: int | None = None, name: str | None = None
) -> tuple[Manifest, float]:
    """Take a snapshot; gives it and how long that took once Spark was there."""
    from penstock.savepoints.snapshot_capture import Capture, capture, check_committed
    from penstock.spark.reading_session import reading_session

    opened = opened_checkpoint(checkpoint)
    check_committed(opened, batch)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds") if kind == "savepoint" else None
    with stderr.status("Starting Spark ..."), reading_session() as session:
        begun_s = time.monotonic()
        manifest = capture(session, opened, Capture(kind, uri, form, name, batch, now))
        seconds = time.monotonic() - begun_s
    note_event(opened.folder, kind, {"id": manifest.id, "uri": redacted(uri), "format": form}, manifest.batch)
    return manifest, seconds


def note_event(folder: Path, kind: EventKind, details: dict[str, Any], batch: int | None = None) -> None:
    """Write down in the checkpoint of a job what was done there, by whom. What is done stays done if that fails."""
    from penstock.checkpoints.checkpoint import Checkpoint
    from penstock.jobs.events import Event, record_event, user_name

    try:
        lineage = Checkpoint(folder).stored_lineage()
        # Savepoints outlive their checkpoints.
        if lineage is not None:
            now, by = dt.datetime.now(dt.UTC), user_name()
            event = Event(at=now, event=kind, job=lineage.job, by=by, batch=batch, details=details)
            record_event(folder, event)
    except CheckpointError as e:
        stderr.print(f"[yellow]Note:[/] {escaped(str(e))}", soft_wrap=True)


def print_snapshot(manifest: Manifest, uri: str, seconds: float, output: Output) -> None:
    """Print what a snapshot holds; its id or place goes to standard output."""
    rows = sum(table.rows for table in manifest.tables if table.kind != "internal")
    if output is Output.json:
        told = {
            "kind": manifest.kind,
            "id": manifest.id,
            "uri": uri,
            "batch": manifest.batch,
            "rows": rows,
            "digest": manifest.digest,
            "seconds": round(seconds, 2),
            "tables": {table.name: table.rows for table in manifest.tables if table.kind != "internal"},
        }
        print_json(told)
        return
    for table in manifest.tables:
        if table.kind != "internal":
            stderr.print(f"  {escaped(table.name)}: {table.rows:,} rows", soft_wrap=True)
    stderr.print(
        f"The {manifest.kind} of micro-batch {manifest.batch} is in {escaped(uri)}: {rows:,} rows in {seconds:.1f} s.",
        soft_wrap=True,
    )
    print(manifest.id if manifest.kind == "savepoint" else uri)
