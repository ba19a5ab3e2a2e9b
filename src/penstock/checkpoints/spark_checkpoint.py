"""Spark's checkpoint: check what it holds, and whether Spark can start from it, before Spark opens it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.checkpoints.spark_state_files import RESTORE, RESTORE_FOLDER, check_partition, damage
from penstock.errors import CheckpointMovedError
from penstock.runtime.cuts import batch_numbers

__all__ = ["Expected", "Found", "inspect", "state_versions"]

_NOTHING_DONE: Final = "Delete the file; no micro-batch was begun yet."


@dataclass(frozen=True)
class Expected:
    """The facts about a checkpoint that penstock knows from other sources than Spark's files.

    `streams` is the number of sources, `begun` the newest micro-batch that may have reached an output (-1 if none has),
    and `retained` how many micro-batches Spark keeps. With `before_commit` everything after the plan of that
    micro-batch is ignored: later plans, its commit, and the state that it wrote. `state_is_here` says that the state is
    in the folder, too.
    """

    streams: int
    begun: int = -1
    retained: int = 100
    before_commit: int | None = None
    state_is_here: bool = True


@dataclass(frozen=True)
class Found:
    """The newest micro-batches that were planned and committed; -1 if there is none.

    `offsets` is the end of each stream in the newest planned one; None for a stream without an offset.
    """

    planned: int = -1
    committed: int = -1
    offsets: tuple[dict[str, Any] | None, ...] = ()


def inspect(folder: Path, expected: Expected, *, thorough: bool = False) -> Found:
    """Inspect Spark's part of a checkpoint. Raises CheckpointError, which names what is damaged.

    This takes milliseconds; with `thorough` it also reads the bytes of the state.
    """
    offsets, commits = _batches(folder / "offsets"), _batches(folder / "commits")
    if expected.before_commit is not None:
        offsets = [number for number in offsets if number <= expected.before_commit]
        commits = [number for number in commits if number < expected.before_commit]
    found = Found(max(offsets, default=-1), max(commits, default=-1))
    _check_metadata(folder / "metadata", has_progress=bool(offsets or commits))
    _check_begun(folder, found, expected)
    oldest = max(found.planned, found.committed) - expected.retained + 1
    _check_complete(folder, [n for n in offsets if n >= oldest], [n for n in commits if n >= oldest])
    ends: tuple[dict[str, Any] | None, ...] = ()
    for number in offsets:
        if number >= oldest:
            ends = _read_offsets(folder / "offsets" / str(number), expected.streams)
    state: dict[str, Any] = {}
    for number in commits:
        if number >= oldest:
            state = state_versions(folder / "commits" / str(number), is_newest=number == found.committed)
    for operator, partitions in state.items() if expected.state_is_here else ():
        _check_operator(folder / "state" / operator, found.committed + 1, partitions, thorough=thorough)
    return dataclasses.replace(found, offsets=ends)


def _batches(folder: Path) -> list[int]:
    """Return the numbers of the micro-batches in a log, in order."""
    try:
        return batch_numbers(folder)
    except OSError as e:
        raise damage(folder, f"cannot be read ({e.strerror})") from e


def _check_metadata(path: Path, *, has_progress: bool) -> None:
    remedy = RESTORE if has_progress else _NOTHING_DONE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if has_progress:
            raise damage(path, "is missing") from None
        return
    if not data:
        raise damage(path, "is empty", remedy)
    if "id" not in _json_object(data, path, remedy):
        raise damage(path, "has no id", remedy)


def _check_begun(folder: Path, found: Found, expected: Expected) -> None:
    """Check that Spark knows the newest micro-batch that may have reached an output; else it would start before it."""
    if found.planned >= expected.begun:
        return
    if found.planned < 0:
        raise damage(
            folder / "offsets",
            f"is {'empty' if (folder / 'offsets').exists() else 'missing'}, though the job has written micro-batch "
            f"{expected.begun}; it would begin from nothing",
            RESTORE_FOLDER,
        )
    raise damage(
        folder / "offsets" / str(expected.begun),
        f"is missing, though the job has written micro-batch {expected.begun}",
    )


def _check_complete(folder: Path, offsets: Sequence[int], commits: Sequence[int]) -> None:
    """Check that every micro-batch but the last was planned and committed, as far back as the logs go."""
    for number in commits:
        if number not in offsets and (not offsets or number > offsets[0]):
            raise damage(
                folder / "offsets" / str(number), f"is missing, though micro-batch {number} is committed"
            )
    for before, after in itertools.pairwise(offsets):
        if after != before + 1:
            raise damage(folder / "offsets" / str(before + 1), f"is missing between {before} and {after}")
    committed = set(commits)
    first = min(commits, default=offsets[-1] - 1 if offsets else 0)
    for number in range(max(first, 0), offsets[-1] if offsets else 0):
        if number not in committed:
            raise damage(
                folder / "commits" / str(number),
                f"is missing, though micro-batch {offsets[-1]} came after it",
            )


def _read_offsets(path: Path, streams: int) -> tuple[dict[str, Any] | None, ...]:
    """Read the end of each stream in a micro-batch."""
    lines, _ = _read_log(path, RESTORE)
    ends = tuple(None if line == "-" else _json_object(line.encode(), path, RESTORE) for line in lines[2:])
    if lines[0] == "v1" and len(ends) != streams:
        raise damage(path, f"has the offsets of {len(ends)} streams instead of {streams}")
    return ends


def state_versions(path: Path, *, is_newest: bool) -> dict[str, Any]:
    """Read the ids of the state's versions from a commit, by operator and partition."""
    remedy = RESTORE
    if is_newest:
        remedy = (
            f"Restore the file from a copy of the checkpoint, or delete it: micro-batch {path.name} is then repeated, "
            "and written only where it was not."
        )
    _, content = _read_log(path, remedy)
    found = content.get("stateUniqueIds") or {}
    if not isinstance(found, dict):
        raise damage(path, "cannot be read (stateUniqueIds)", remedy)
    return found


def _read_log(path: Path, remedy: str) -> tuple[list[str], dict[str, Any]]:
    """Read the lines of a file of Spark's logs, and decode the second; the first is the version of the format."""
    try:
        data = path.read_bytes()
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise damage(path, f"cannot be read ({e})", remedy) from e
    if not lines:
        raise damage(path, "is empty", remedy)
    if not (lines[0].startswith("v") and lines[0][1:].isdecimal()):
        raise damage(path, f"begins with {lines[0][:20]!r} instead of a version", remedy)
    return lines, _json_object(lines[1].encode() if len(lines) > 1 else b"", path, remedy)


def _json_object(data: bytes, path: Path, remedy: str) -> dict[str, Any]:
    if not data:
        raise damage(path, "is truncated", remedy)
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise damage(path, f"is truncated or damaged ({e})", remedy) from e
    return found


def _check_operator(
    folder: Path, version: int, partitions: Sequence[Sequence[str]], *, thorough: bool
) -> None:
    """Check the state of one operator: its description, and the files of each partition for a version."""
    if not folder.is_dir():
        raise damage(folder, "is missing", RESTORE_FOLDER)
    _check_description(folder)
    for number, ids in enumerate(partitions):
        partition = folder / str(number)
        if not partition.is_dir():
            raise damage(partition, "is missing", RESTORE_FOLDER)
        # Some of Spark's own operators keep several stores for one partition; penstock's have one.
        if len(ids) == 1:
            check_partition(partition, version, ids[0], thorough=thorough)


def _check_description(folder: Path) -> None:
    """Check the newest description of an operator, and the schemas that it names."""
    described = folder / "_metadata" / "v2"
    numbers = _batches(described)
    if not numbers:
        raise damage(described, "has no file that describes the state", RESTORE_FOLDER)
    path = described / str(numbers[-1])
    _, content = _read_log(path, RESTORE)
    for store in content.get("stateStoreInfo") or []:
        for uri in store.get("stateSchemaFilePaths") or []:
            _check_schema(folder, uri)


def _check_schema(folder: Path, uri: str) -> None:
    """Check the file of a schema, which Spark looks for where it was written."""
    if not uri.startswith(("file:", "/")):
        return
    path = Path("/" + uri.removeprefix("file:").lstrip("/"))
    if not path.exists():
        before = path.parents[2]
        if before != folder:
            raise CheckpointMovedError(
                f"The checkpoint was moved: its state was written to {before} and is now in {folder}, but Spark looks "
                "for the schemas of the state only in the old place. Move the checkpoint back there."
            )
        raise damage(path, "is missing")
    if path.stat().st_size == 0:
        raise damage(path, "is empty")
