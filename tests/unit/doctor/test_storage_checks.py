"""The doctor on folders: writable, large enough, and able to run programs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.doctor.findings import Finding
from penstock.doctor.storage import Disk, Folder, check_folder, disk_of, job_folders, write_to
from penstock.machine.cache import cache_folder, cache_place

GIB = 1 << 30
PLENTY = Disk(100 * GIB, 1_000_000, runs_programs=True)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder that must run programs, with at least 1 GiB, better 4."""
    return Folder("cache", tmp_path, "PENSTOCK_CACHE", GIB, 4 * GIB, runs_programs=True)


def found(folder: Folder, disk: Disk) -> Finding:
    return check_folder(folder, disk=lambda path: disk)


@pytest.mark.parametrize(
    ("disk", "status", "said"),
    [
        (PLENTY, "ok", "100.0 GiB free"),
        (Disk(2 * GIB, None, runs_programs=True), "warning", "2.0 GiB free"),
        (Disk(GIB // 2, None, runs_programs=True), "failed", "0.5 GiB free"),
        (Disk(100 * GIB, 9, runs_programs=True), "warning", "only 9 more files"),
        (Disk(100 * GIB, None, runs_programs=False), "failed", "noexec"),
    ],
)
def test_a_disk_has_room_files_and_runs_programs(folder: Folder, disk: Disk, status: str, said: str) -> None:
    """The message for a problem has the setting that chooses another folder."""
    finding = found(folder, disk)
    assert (finding.check, finding.status) == ("cache", status), finding
    assert said in finding.found
    assert str(folder.path) in finding.found
    assert ("PENSTOCK_CACHE" in finding.remedy) == (status != "ok")


def test_a_folder_that_cannot_be_written_is_told(folder: Folder) -> None:
    """The message has the system's reason."""

    def refuse(path: Path, has_locks: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    finding = check_folder(folder, refuse)
    assert finding.status == "failed"
    assert "is not writable (Read-only file system)" in finding.found
    assert "PENSTOCK_CACHE" in finding.remedy


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    """Even root cannot write there."""
    (tmp_path / "file").touch()
    finding = check_folder(Folder("checkpoint", tmp_path / "file" / "state", "--checkpoint", 0, 0))
    assert finding.status == "failed"
    assert "Not a directory" in finding.found


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported only where locks are needed."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", refuse)
    assert check_folder(Folder("cache", tmp_path, "X", 0, 0)).status == "ok"
    finding = check_folder(Folder("checkpoint", tmp_path, "--checkpoint", 0, 0, has_locks=True))
    assert (finding.status, "No locks available" in finding.found) == ("failed", True)


def test_the_folder_in_which_a_new_one_would_be_is_looked_at(tmp_path: Path) -> None:
    """The check creates nothing."""
    new = tmp_path / "a" / "b"
    finding = check_folder(Folder("cache", new, "X", 0, 0, has_locks=True))
    assert finding.status == "ok"
    assert f"{new}, to be created in {tmp_path}" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_a_real_disk_is_looked_at(tmp_path: Path) -> None:
    """The numbers are the system's."""
    write_to(tmp_path, True)
    disk = disk_of(tmp_path)
    assert disk.free_bytes > 0
    assert disk.runs_programs is not bool(os.statvfs(tmp_path).f_flag & os.ST_NOEXEC)


def test_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is where penstock has it."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk1,/disk2")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {folder.path: folder for folder in job_folders()}
    assert list(folders) == [tmp_path / "cache", Path("/tmp"), tmp_path, Path("/disk1"), Path("/disk2")]
    assert [folder.runs_programs for folder in folders.values()] == [True, True, False, False, False]
    for name, value in (("PENSTOCK_CACHE", ""), ("XDG_CACHE_HOME", str(tmp_path / "xdg"))):
        monkeypatch.setenv(name, value)
        assert cache_place() == cache_folder()
