"""Custom connectors to which tests bind: some that work, and some with a mistake."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from penstock.connectors import Block, Received, RecordLog, RecordReceiver, RecordSink, TaskContext
from penstock.errors import ExternalSystemError


class Lines(RecordLog):
    """The lines of each file in a folder; a position is a line number."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        self._folder = folder
        self._first = first

    def ends(self) -> Mapping[str, int]:
        return {path.name: path.read_bytes().count(b"\n") for path in self._folder.glob("*.txt")}

    def begins(self) -> Mapping[str, int]:
        return {path.name: self._first for path in self._folder.glob("*.txt")} if self._first else {}

    def read(self, partition: str, start: int, end: int) -> Iterable[tuple[int, bytes]]:
        lines = (self._folder / partition).read_bytes().split(b"\n")
        return list(enumerate(lines))[start:end]


class Backwards(Lines):
    """A log whose positions descend."""

    def read(self, partition: str, start: int, end: int) -> Iterable[tuple[int, bytes]]:
        return reversed([*super().read(partition, start, end)])


class Broken(Lines):
    """A log that cannot be read."""

    def ends(self) -> Mapping[str, int]:
        raise ConnectionRefusedError("nobody is there")

    def read(self, partition: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        yield 0, b"{}"
        raise KeyError(partition)


class Feed(RecordReceiver):
    """The lines of a file, with line numbers as positions; it pauses at the end of the file."""

    guarantee = "each record once"

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, after: str | None) -> None:
        self._next = 0 if after is None else int(after)

    def receive(self, wait_s: float) -> Received | None:
        lines = self._path.read_bytes().splitlines()
        if self._next >= len(lines):
            return None
        self._next += 1
        return Received([lines[self._next - 1]], position=str(self._next))


class Inbox(RecordReceiver):
    """Files without positions, which are deleted when acknowledged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: set[str] = set()

    def open(self, after: str | None) -> None:
        assert after is None
        next(self._folder.iterdir(), None)

    def receive(self, wait_s: float) -> Received | None:
        new = sorted(path for path in self._folder.iterdir() if path.name not in self._taken)
        if not new:
            return None
        self._taken.add(new[0].name)
        return _File(new[0])

    def acknowledge(self, received: Received) -> None:
        assert isinstance(received, _File)
        received.path.unlink()


class _File(Received):
    def __init__(self, path: Path) -> None:
        super().__init__([path.read_bytes()])
        object.__setattr__(self, "path", path)

    path: Path


class Staged(RecordSink):
    """A sink whose tasks stage files, and whose commit renames them."""

    guarantee = "exactly once"

    def __init__(self, folder: Path, mode: Literal["rows", "arrow"] = "rows", loud: bool = False) -> None:
        self._folder = folder
        self._mode = mode
        self._loud = loud
        self._lines: list[str] = []

    def begin(self, context: TaskContext) -> None:
        self._name = f"{context.lineage}-{context.batch_id:05}-{context.partition}-{context.attempt}"

    def write(self, block: Block) -> None:
        self._lines += [f"{row['id']} {row['value']}" for row in block.rows]

    def finish(self) -> str:
        (self._folder / f".{self._name}").write_text("".join(f"{line}\n" for line in self._lines))
        return self._name

    def commit(self, batch_id: int, messages: Sequence[str]) -> None:
        for name in messages:
            batch = name.rpartition("-")[0]
            if not list(self._folder.glob(f"{batch}-*")):
                (self._folder / f".{name}").rename(self._folder / name)


class Marked(RecordSink):
    """Lines with ids."""

    guarantee = "at least once with ids"

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, block: Block) -> None:
        assert block.ids is not None
        with self._path.open("a") as file:
            for row, mark in zip(block.rows, block.ids, strict=True):
                file.write(f"{row['id']} {mark} {row['value']}\n")


class Clumsy(RecordSink):
    """A sink with a mistake in each method."""

    def __init__(self, password: str = "", port: int = 1) -> None:
        self._password = password
        self._port = port

    def prepare(self, lineage: str) -> None:
        raise ExternalSystemError(f"The server refuses {self._password!r}.")

    def write(self, block: Block) -> None:
        raise ValueError(f"bad login {self._password}")

    def finish(self) -> str:
        return 5  # type: ignore[return-value]  # that is the mistake


class Half(RecordSink):
    """A sink without `write`."""


class Boastful(RecordSink):
    """A sink that declares a guarantee which it lacks the methods for."""

    guarantee = "at most once"  # type: ignore[assignment]  # that is the mistake

    def write(self, block: Block) -> None: ...


class Greedy(RecordSink):
    """A sink with arbitrary options."""

    def __init__(self, **options: str) -> None: ...

    def write(self, block: Block) -> None: ...


class Odd(RecordSink):
    """A sink with an option of a type that cannot be parsed from text."""

    def __init__(self, many: list[int]) -> None: ...

    def write(self, block: Block) -> None: ...


class _OneThread:
    """Refuses calls from another thread than its creator's, as clients of some systems do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = threading.get_ident()

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise ValueError("another thread")

    def close(self) -> None:
        self._check()


class StrictFeed(_OneThread, Feed):
    """A feed in one thread."""

    def open(self, after: str | None) -> None:
        self._check()
        super().open(after)

    def receive(self, wait_s: float) -> Received | None:
        self._check()
        return super().receive(wait_s)


class StrictSink(_OneThread, RecordSink):
    """A sink in one thread."""

    guarantee = "exactly once"

    def begin(self, context: TaskContext) -> None:
        self._check()

    def write(self, block: Block) -> None:
        self._check()

    def finish(self) -> str:
        self._check()
        return "done"

    def abort(self) -> None:
        self._check()
        self._path.write_text("aborted")
