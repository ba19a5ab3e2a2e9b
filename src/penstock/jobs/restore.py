"""Restore: prepare the state that a job starts with: its checkpoint, else a savepoint, else a dump, else nothing."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.durable import make_folder, sync_folder
from penstock.checkpoints.checkpoint import Checkpoint, Lineage, Origin
from penstock.checkpoints.described_state import STATE_FILE, JobState, describe_state, read_described
from penstock.checkpoints.evolution import Change, check_changes, plan_changes
from penstock.checkpoints.ownership import lock_checkpoint
from penstock.errors import CheckpointError, SnapshotError, StateMismatchError
from penstock.jobs.compile import wanted_lineage
from penstock.jobs.settings import RunSettings
from penstock.models.library import MODELS
from penstock.runtime.plan import JobPlan
from penstock.savepoints.savepoints import place_of
from penstock.savepoints.source_files import OWN_FOLDERS, is_beginning
from penstock.savepoints.state_restore import Snapshot, states_of, write_seed
from penstock.snapshots.snapshot_reader import read_file
from penstock.streams.graph import COMMANDS
from penstock.streams.job_description import JobDescription

__all__ = ["begin", "check_stored_states", "declared_state", "must_evolve", "planned_changes", "put_aside"]

# Marks a checkpoint while it gets its first state, until it has a lineage.
_MARK_FILE: Final = "beginning.json"


def put_aside(folder: Path, stop: threading.Event, timeout_s: float) -> Path | None:
    """Rename an existing checkpoint, so that a new one can take its place; return its new path, None without one.

    Raises CheckpointError when a run uses the checkpoint.
    """
    if not (folder / "lineage.json").exists():
        return None
    with lock_checkpoint(folder, stop, timeout_s):
        number = 1
        while (aside := folder.with_name(f"{folder.name}.before-{number}")).exists():
            number += 1
        folder.rename(aside)
    sync_folder(folder.parent)
    return aside


def declared_state(job: JobDescription) -> JobState:
    """Return the states that a job declares."""
    return describe_state(
        job.name, JobPlan(job.graph, job.key_groups, frozenset(), frozenset(), strict=False)
    )


def planned_changes(job: JobDescription, source: str, *, allow_non_restored_state: bool) -> list[Change]:
    """Return what would happen to each state if the job started from a savepoint, dump or checkpoint. Reads no data."""
    declared = declared_state(job).steps
    if not (Path(source) / STATE_FILE).exists():
        found = states_of(Snapshot.at(source).manifest)
        return plan_changes(declared, found.steps, allow_non_restored_state=allow_non_restored_state)
    steps = read_described(Path(source)).steps
    detail = "the steps of a checkpoint are fixed; take a savepoint, and start from that"
    return [
        msgspec.structs.replace(change, outcome="refused", detail=detail)
        if (change.step in declared) != (change.step in steps)
        else change
        for change in plan_changes(declared, steps)
    ]


def must_evolve(declared: JobState, checkpoint: Checkpoint) -> bool:
    """Return whether the states of an existing checkpoint must be rewritten as the job declares them now."""
    if not (checkpoint.folder / STATE_FILE).exists():
        return False
    changes = plan_changes(declared.steps, read_described(checkpoint.folder).steps)
    return any(change.outcome not in ("kept", "added") for change in changes)


def begin(job: JobDescription, settings: RunSettings, checkpoint: Checkpoint) -> str:
    """Prepare the checkpoint of a run; return a sentence that says what the job starts with.

    The checkpoint must be locked. A new one gets the state of the snapshot that the settings name. The state is
    complete when the checkpoint has a lineage; without one, nothing in the checkpoint counts. Raises StateMismatchError
    when the state does not fit, and SnapshotError when the snapshot cannot be used.
    """
    declared = declared_state(job)
    lineage = checkpoint.stored_lineage()
    if lineage is not None:
        (checkpoint.folder / _MARK_FILE).unlink(missing_ok=True)
        if (lineage.job, lineage.key_groups) != (job.name, job.key_groups):
            # Raises. That another job owns the checkpoint matters more than its content.
            checkpoint.lineage(wanted_lineage(job, settings))
        check_stored_states(checkpoint, declared)
        if settings.from_savepoint or settings.from_dump:
            return (
                f"The job resumes from its checkpoint {checkpoint.folder}. The given snapshot is only for a new "
                "checkpoint; --fresh puts the old one aside."
            )
        return f"The job resumes from its checkpoint {checkpoint.folder}."
    uri = settings.from_dump
    if settings.from_savepoint is not None:
        uri = place_of(settings.from_savepoint, checkpoint.folder)
    _clear(checkpoint)
    if uri is None:
        return "The job starts without state: its checkpoint is new, and no savepoint or dump was given."
    snapshot = Snapshot.at(uri)
    manifest = snapshot.manifest
    if settings.from_savepoint is not None and manifest.kind != "savepoint":
        raise SnapshotError(f"{uri} is a dump. Start from it with --from-dump.")
    changes = plan_changes(
        declared.steps,
        states_of(manifest).steps,
        allow_non_restored_state=settings.allow_non_restored_state,
    )
    check_changes(changes, uri)
    lineage = _with_origin(wanted_lineage(job, settings), snapshot, settings, uri)
    _check_empty(checkpoint)
    checkpoint.save(_MARK_FILE, {"from": uri})
    keys = write_seed(snapshot, declared, lineage.parallelism, changes, checkpoint.seed)
    _restore_own_files(snapshot, checkpoint.folder, with_sources=bool(lineage.positions))
    # Before the lineage is written, which may be on disk as soon as it has its name.
    sync_folder(checkpoint.folder)
    checkpoint.begin(lineage)
    (checkpoint.folder / _MARK_FILE).unlink()
    held = ", ".join(f"{count:,} keys of {step}" for step, count in keys.items()) or "no keys"
    return (
        f"The job starts from the {manifest.kind} {manifest.id} of {manifest.job!r} after micro-batch "
        f"{manifest.batch}, in {uri}: {held}{_format_changes(changes)}. Its checkpoint is new."
    )


def _format_changes(changes: list[Change]) -> str:
    """Format what happened to the states that are not simply kept."""
    shown = [
        f"{c.step}/{c.state} {c.outcome}{f' ({c.detail})' if c.detail else ''}"
        for c in changes
        if c.outcome != "kept" and not c.state.startswith("__")
    ]
    return f"; {', '.join(shown)}" if shown else ""


def check_stored_states(checkpoint: Checkpoint, declared: JobState) -> None:
    """Check that a checkpoint has the steps that a job declares, with states that fit. Raises StateMismatchError."""
    if not (checkpoint.folder / STATE_FILE).exists():
        return
    found = read_described(checkpoint.folder)
    ours, theirs = set(declared.steps), set(found.steps)
    if ours != theirs:
        names = ", ".join(repr(name) for name in sorted(ours ^ theirs))
        raise StateMismatchError(
            f"The checkpoint {checkpoint.folder} has the steps {', '.join(sorted(theirs)) or 'none'}, and the job "
            f"has {', '.join(sorted(ours)) or 'none'} ({names} differ). Take a savepoint of the checkpoint with "
            "penstock savepoint, and start the changed job from it with a new checkpoint and --from-savepoint."
        )
    check_changes(plan_changes(declared.steps, found.steps), str(checkpoint.folder))


def _with_origin(lineage: Lineage, snapshot: Snapshot, settings: RunSettings, uri: str) -> Lineage:
    manifest = snapshot.manifest
    keeps = settings.keep_positions
    if keeps is None:
        keeps = manifest.kind == "savepoint"
    positions: dict[str, Any] = {}
    if keeps:
        positions = {name: found for name, found in manifest.positions.items() if name in lineage.streams}
        if manifest.kind == "dump" and "position" in positions.get(COMMANDS, {}):
            # The folder of commands belongs to the checkpoint, and a new checkpoint has an empty one.
            del positions[COMMANDS]
        _check_positions(manifest.kind, positions, uri)
    reason = f"its checkpoint was new, and the {manifest.kind} was given"
    origin = Origin(manifest.kind, manifest.id, uri, manifest.batch, reason)
    return msgspec.structs.replace(lineage, origin=origin, positions=positions)


def _check_positions(kind: str, positions: dict[str, Any], uri: str) -> None:
    own = [name for name, found in positions.items() if "position" in found]
    if kind == "dump" and own:
        raise SnapshotError(
            f"The dump {uri} does not have the files and journals of the stream {own[0]!r}, so its position in them "
            "means nothing. Start from a savepoint, or without --keep-positions."
        )


def _clear(checkpoint: Checkpoint) -> None:
    """Remove the remains of an interrupted start."""
    mark = checkpoint.folder / _MARK_FILE
    if not mark.exists():
        return
    for folder in _find_filled_folders(checkpoint):
        shutil.rmtree(folder)
    sync_folder(checkpoint.folder)
    mark.unlink()


def _check_empty(checkpoint: Checkpoint) -> None:
    for folder in _find_filled_folders(checkpoint):
        raise CheckpointError(
            f"{folder} exists already, and was not made by penstock. Choose an empty folder with --checkpoint."
        )


def _find_filled_folders(checkpoint: Checkpoint) -> list[Path]:
    """Return the existing folders of a checkpoint that a snapshot fills."""
    folders = [checkpoint.seed, *(checkpoint.folder / name for name in OWN_FOLDERS)]
    return [folder for folder in folders if folder.exists()]


def _restore_own_files(snapshot: Snapshot, folder: Path, *, with_sources: bool = True) -> None:
    for file in snapshot.manifest.files:
        # Models belong to the state, the other files to the positions of the sources.
        if not with_sources and not file.path.startswith(f"{MODELS}/"):
            continue
        # Savepoints of earlier versions have these, too.
        if is_beginning(file.path):
            continue
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CheckpointError(f"The snapshot has a file {file.path!r}, which is outside the checkpoint.")
        make_folder(path.parent)
        with path.open("wb") as target:
            target.write(read_file(snapshot.store, file))
            target.flush()
            os.fsync(target.fileno())
        sync_folder(path.parent)
