"""Storage checks: folders are writable and large enough, and run programs where they must."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.doctor.findings import Finding, failed, fine, warning
from penstock.machine.cache import cache_place

__all__ = ["Disk", "Folder", "check_folder", "disk_of", "job_folders", "write_to"]

_GIB: Final = 1 << 30
_PROBE_BYTES: Final = 1 << 16
_FEW_FILES: Final = 10_000
# Java keeps its temporary files there, whatever TMPDIR says.
_JAVA_TEMPORARY: Final = Path("/tmp")  # noqa: S108  # checked, not written under a name


@dataclass(frozen=True)
class Folder:
    """A folder that jobs use: its purpose, the setting that names it, and its requirements.

    With less than `min_bytes` free no job runs for long; with less than `good_bytes` some do not.
    """

    check: str
    path: Path
    setting: str
    min_bytes: int
    good_bytes: int
    runs_programs: bool = False
    has_locks: bool = False


@dataclass(frozen=True)
class Disk:
    """The free space on a file system. `free_files` is None if it does not count files."""

    free_bytes: int
    free_files: int | None
    runs_programs: bool


def job_folders(environment: Mapping[str, str] = os.environ) -> list[Folder]:
    """Return the folders that every job on this machine uses, each once."""
    temporary = Path(tempfile.gettempdir())
    found = [
        Folder("cache", cache_place(environment), "PENSTOCK_CACHE", _GIB // 4, _GIB // 2, runs_programs=True),
        # Java unpacks and loads the libraries of RocksDB and compression there; shuffles and state have files there.
        Folder(
            "temporary files",
            _JAVA_TEMPORARY,
            "JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=DIR",
            _GIB // 2,
            4 * _GIB,
            runs_programs=True,
        ),
    ]
    if temporary != _JAVA_TEMPORARY:
        found.append(Folder("Python's temporary files", temporary, "TMPDIR", _GIB // 4, _GIB))
    named = filter(None, environment.get("SPARK_LOCAL_DIRS", "").split(","))
    return found + [
        Folder("Spark's files", Path(text), "SPARK_LOCAL_DIRS", _GIB // 2, 4 * _GIB) for text in named
    ]


def check_folder(
    folder: Folder,
    write: Callable[[Path, bool], None] | None = None,
    disk: Callable[[Path], Disk] | None = None,
) -> Finding:
    """Check one folder; for a missing one, the folder in which it would be created."""
    path = folder.path
    while not path.exists() and path != path.parent:
        path = path.parent
    shown = str(folder.path) if path == folder.path else f"{folder.path}, to be created in {path}"
    try:
        (write or write_to)(path, folder.has_locks)
        found = (disk or disk_of)(path)
    except OSError as e:
        return failed(
            folder.check,
            f"{shown} is not writable ({e.strerror or e})",
            f"Make {path} writable, or choose another folder with {folder.setting}.",
        )
    free = f"{found.free_bytes / _GIB:.1f} GiB free in {shown}"
    room = f"Free some space, or choose a folder on another disk with {folder.setting}."
    if folder.runs_programs and not found.runs_programs:
        return failed(
            folder.check,
            f"{shown} is mounted with noexec, and programs and libraries in it must run",
            f"Mount it without noexec, or choose another folder with {folder.setting}.",
        )
    if found.free_bytes < folder.min_bytes:
        return failed(folder.check, free, room)
    if found.free_files is not None and found.free_files < _FEW_FILES:
        return warning(folder.check, f"{free}, but only {found.free_files} more files", room)
    if found.free_bytes < folder.good_bytes:
        return warning(folder.check, free, room)
    return fine(folder.check, free)


def write_to(folder: Path, has_locks: bool) -> None:
    """Write an unnamed file to the disk of a folder, and lock it if that must work. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        if has_locks:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def disk_of(folder: Path) -> Disk:
    """Return the file system of a folder."""
    found = os.statvfs(folder)
    return Disk(
        found.f_bavail * found.f_frsize,
        found.f_favail if found.f_files else None,
        not found.f_flag & os.ST_NOEXEC,
    )
