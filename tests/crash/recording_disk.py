"""A disk that records every file operation of this process below one folder, and can inject a fault at any of
them.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
from disk_tree import Op, Tree

__all__ = ["Died", "RecordingDisk"]

_WRITES = os.O_WRONLY | os.O_RDWR


class Died(BaseException):  # no error handler may catch it
    """The process was killed."""


class RecordingDisk:
    """The files below a folder, which other code uses normally while this is entered.

    `before` is called before each operation, and may raise OSError as a disk does, or Died. Once it has
    raised Died, nothing that the code does while unwinding reaches the disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ops: list[Op] = []
        self.before: Callable[[Op], None] | None = None
        self.on_read: Callable[[str], None] | None = None
        self.tree = Tree()
        self.base = Tree()
        self.is_dead = False
        self._root = f"{root}/"
        self._open_files: dict[int, tuple[int, str]] = {}
        self._descriptors: set[int] = set()
        self._durable = False
        self._saved: list[tuple[Any, str, Any]] = []

    def begin(self, tree: Tree | None = None) -> None:
        """Record anew, from the disk's present content, which may be passed in."""
        self.tree = Tree.read(self.root) if tree is None else tree
        self.base = self.tree.copy()
        self.ops = []
        self.is_dead = False
        self._open_files = {}

    def mark(self, note: Any) -> None:
        """Record the scenario's progress."""
        self._record(Op("mark", note=note))

    @contextlib.contextmanager
    def durably(self) -> Iterator[None]:
        """Make operations survive a power loss, without faults."""
        self._check()
        self._durable = True
        try:
            yield
        finally:
            self._durable = False

    def _record(self, op: Op) -> None:
        if self._durable:
            op = op._replace(durable=True)
        else:
            self._check()
            if self.before is not None:
                try:
                    self.before(op)
                except Died:
                    self.is_dead = True
                    raise
        self.ops.append(op)

    def _check(self) -> None:
        if self.is_dead:
            raise Died

    # Replacements of Python's functions.

    def __enter__(self) -> Self:
        for name in (
            "open",
            "close",
            "write",
            "pwrite",
            "fsync",
            "fdatasync",
            "ftruncate",
            "truncate",
            "rename",
            "link",
            "unlink",
            "mkdir",
            "rmdir",
        ):
            self._replace(os, name, getattr(self, f"_os_{name}"))
        self._replace(os, "replace", self._os_rename)
        self._replace(os, "remove", self._os_unlink)
        self._replace(builtins, "open", self._file)
        self._replace(io, "open", self._file)
        # The fast implementation uses open folders, which would have to be tracked.
        self._replace(shutil, "_use_fd_functions", False)
        self._replace(pq, "ParquetWriter", self._parquet_writer())
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self._saved.clear()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        real = getattr(owner, name)
        self._saved.append((owner, name, real))
        setattr(self, f"real_{name}", real)
        setattr(owner, name, value)

    def _parquet_writer(self) -> Any:
        disk, real = self, pq.ParquetWriter

        class Writer(real):  # type: ignore[misc, valid-type]
            """Writes through a Python file, so that writes are recorded."""

            def __init__(self, where: Any, *args: Any, **more: Any) -> None:
                self._own: Any = None
                if disk._relative(where) is not None:
                    self._own = where = Path(where).open("wb")  # noqa: SIM115  # closed with the writer
                super().__init__(where, *args, **more)

            def close(self) -> None:
                super().close()
                if self._own is not None:
                    self._own.close()

        return Writer

    def _relative(self, path: Any) -> str | None:
        """Return the path below the folder, or None outside it."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        text = os.fsdecode(path)
        if not text.startswith(self._root) or "/../" in text or "//" in text:
            text = os.path.abspath(text)  # noqa: PTH100  # without a look at the disk
        if text.startswith(self._root):
            return text[len(self._root) :]
        return "" if f"{text}/" == self._root else None

    def _place(self, path: str) -> tuple[int, str] | None:
        """Return the folder's node and the name of a relative path."""
        folder, _, name = path.rpartition("/")
        node = self.tree.find(folder)
        return None if node is None else (node, name)

    def _make(self, path: str, *, is_folder: bool) -> Op | None:
        place = self._place(path)
        if place is None or self.tree.find(path) is not None:
            return None
        self.tree.newest += 1
        return Op("make", self.tree.newest, *place, is_folder=is_folder, path=path)

    def _do(self, op: Op) -> None:
        """Record an operation, and apply it to the tree."""
        self._record(op)
        self.tree.apply(self.ops[-1])

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        relative = self._relative(path)
        if relative is None or dir_fd is not None:
            return _real_os_open(path, flags, mode, dir_fd=dir_fd)
        file = self._opened(relative, path, flags, mode)
        self._descriptors.add(file)
        return file

    def _opened(self, relative: str, path: Any, flags: int, mode: int = 0o666) -> int:
        if not flags & (_WRITES | os.O_CREAT) and self.on_read is not None and not self._durable:
            self.on_read(relative)
        made = self._make(relative, is_folder=False) if flags & os.O_CREAT else None
        truncated = bool(flags & os.O_TRUNC) and made is None and self.tree.find(relative) is not None
        if made is not None:
            self._check_faults(made)
        file: int = _real_os_open(path, flags, mode)
        if made is not None:
            self._follow(made)
        node = self.tree.find(relative)
        if node is None:
            return file
        if truncated and self.tree.content[node]:
            self._do(Op("resize", node, path=relative))
        self._open_files[file] = node, relative
        return file

    def _check_faults(self, op: Op) -> None:
        """Raise the fault that the disk has at this operation, before it is carried out."""
        if not self._durable:
            self._check()
            if self.before is not None:
                try:
                    self.before(op)
                except Died:
                    self.is_dead = True
                    raise

    def _follow(self, op: Op) -> None:
        self.ops.append(op._replace(durable=True) if self._durable else op)
        self.tree.apply(op)

    def sync_all(self, _: Path) -> None:
        """Replace `durable.sync_file_system`."""
        self._record(Op("sync all"))

    def end_process(self) -> None:
        """Close the files that a dead process has left open, which releases its locks."""
        for file in list(self._descriptors):
            self._os_close(file)

    def _os_close(self, file: int) -> None:
        self._descriptors.discard(file)
        self._open_files.pop(file, None)
        self.real_close(file)

    def _written(self, file: int, at: int | None, data: Any) -> None:
        node, path = self._open_files[file]
        content = bytes(data)
        if at is None:
            at = len(self.tree.content[node]) if _appends(file) else os.lseek(file, 0, os.SEEK_CUR)
        self._do(Op("write", node, at=at, data=content, path=path))

    def _os_write(self, file: int, data: Any) -> int:
        if file in self._open_files:
            self._written(file, None, data)
        return int(self.real_write(file, data))

    def _os_pwrite(self, file: int, data: Any, at: int) -> int:
        if file in self._open_files:
            self._written(file, at, data)
        return int(self.real_pwrite(file, data, at))

    def _os_fsync(self, file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        found = self._open_files.get(number)
        if found is None:
            self.real_fsync(number)
        else:
            node, path = found
            self._record(Op("sync", node, is_folder=node in self.tree.names, path=path))

    _os_fdatasync = _os_fsync

    def _os_ftruncate(self, file: int, size: int) -> None:
        node, path = self._open_files.get(file, (None, ""))
        if node is not None and len(self.tree.content[node]) != size:
            self._do(Op("resize", node, at=size, path=path))
        self.real_ftruncate(file, size)

    def _os_truncate(self, path: Any, size: int) -> None:
        if isinstance(path, int):
            self._os_ftruncate(path, size)
            return
        relative = self._relative(path)
        node = None if relative is None else self.tree.find(relative)
        if node is not None:
            self._do(Op("resize", node, at=size, path=relative or ""))
        self.real_truncate(path, size)

    def _os_rename(self, before: Any, after: Any, **more: Any) -> None:
        source, target = self._relative(before), self._relative(after)
        node = None if source is None else self.tree.find(source)
        if node is None or source is None or target is None:
            self.real_rename(before, after, **more)
            return
        old, new = self._place(source), self._place(target)
        assert old is not None
        op = (
            None
            if new is None
            else Op("move", node, *old, *new, is_folder=node in self.tree.names, path=source)
        )
        if op is not None:
            self._check_faults(op)
        self.real_rename(before, after)
        if op is not None:
            self._follow(op)

    def _os_link(self, before: Any, after: Any, **more: Any) -> None:
        source, target = self._relative(before), self._relative(after)
        node = None if source is None else self.tree.find(source)
        place = None if target is None else self._place(target)
        if node is None or place is None or target is None or self.tree.find(target) is not None:
            self.real_link(before, after, **more)
            return
        op = Op("name", node, *place, path=target)
        self._check_faults(op)
        self.real_link(before, after, **more)
        self._follow(op)

    def _os_unlink(self, path: Any, *, dir_fd: Any = None) -> None:
        self._gone(path, self.real_unlink)

    def _os_rmdir(self, path: Any, *, dir_fd: Any = None) -> None:
        self._gone(path, self.real_rmdir)

    def _gone(self, path: Any, real: Callable[[Any], None]) -> None:
        relative = self._relative(path)
        node = None if relative is None else self.tree.find(relative)
        place = None if relative is None else self._place(relative)
        if node is None or place is None or relative is None:
            real(path)
            return
        op = Op("unname", node, *place, path=relative)
        self._check_faults(op)
        real(path)
        self._follow(op)

    def _os_mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        relative = self._relative(path)
        op = None if relative is None else self._make(relative, is_folder=True)
        if op is not None:
            self._check_faults(op)
        self.real_mkdir(path, mode)
        if op is not None:
            self._follow(op)

    def _file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # as open
        opener: Any = None,
    ) -> Any:
        """Open a recorded file."""
        relative = self._relative(file)
        if relative is None or opener is not None:
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _File(self, relative, file, mode.replace("b", "").replace("t", ""))
        if "b" in mode and buffering == 0:
            return raw
        buffered: Any
        if raw.readable() and raw.writable():
            buffered = io.BufferedRandom(raw)
        elif raw.writable():
            buffered = io.BufferedWriter(raw)
        else:
            buffered = io.BufferedReader(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


_real_open = builtins.open
_real_os_open = os.open


class _File(io.FileIO):
    """A file whose changes are recorded."""

    def __init__(self, disk: RecordingDisk, relative: str, path: Any, mode: str) -> None:
        self._disk = disk
        super().__init__(path, mode, opener=lambda name, flags: disk._opened(relative, name, flags))

    def write(self, data: Any, /) -> int:
        if self._disk.is_dead:
            # Nobody is left who could handle an error, least of all for a file being garbage collected.
            return len(data)
        self._disk._written(self.fileno(), None, data)
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        size = self.tell() if size is None else size
        self._disk._os_ftruncate(self.fileno(), size)
        return size

    def close(self) -> None:
        if not self.closed:
            self._disk._open_files.pop(self.fileno(), None)
        super().close()


def _appends(file: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND)
