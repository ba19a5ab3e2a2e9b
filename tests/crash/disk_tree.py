"""A disk as data: folders, files and names, and the operations that change them; read from a folder and
written back.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["ROOT", "Op", "OpKind", "Tree"]

OpKind = Literal["make", "name", "unname", "move", "write", "resize", "sync", "sync all", "mark", "broker"]

ROOT = 1
"""The node of the folder that all others are in."""


class Op(NamedTuple):
    """One operation on a disk. A node is a file or a folder, whatever its names are.

    `make` creates the node under a name, `name` gives it a further one (a link), `unname` takes one away, `move` is a
    rename. What is `durable` is there after a power loss, too: it was done by somebody who takes care of that. A `mark`
    changes nothing; it says how far the scenario was, and a `note` is for whoever reads the marks. `broker` changes
    what brokers hold (`recording_broker.py`), and nothing on the disk.
    """

    kind: OpKind
    node: int = 0
    folder: int = 0
    name: str = ""
    to_folder: int = 0
    to_name: str = ""
    at: int = 0
    data: bytes = b""
    is_folder: bool = False
    durable: bool = False
    path: str = ""
    note: Any = None

    def __str__(self) -> str:
        what = f"{self.kind} {self.path}"
        if self.kind == "move":
            what += f" to {self.to_name}"
        if self.kind == "write":
            what += f" at {self.at}: {len(self.data)} bytes"
        if self.kind == "resize":
            what += f" to {self.at}"
        return what + (f" {self.note}" if self.kind == "mark" else "")


@dataclass
class Tree:
    """The content of a disk: the names in each folder, and the bytes of each file, by node."""

    names: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    content: dict[int, bytearray] = field(default_factory=dict)
    newest: int = ROOT

    @classmethod
    def read(cls, folder: Path) -> Tree:
        """Read a real folder."""
        tree = cls()
        tree._read(folder, ROOT)
        return tree

    def _read(self, folder: Path, node: int) -> None:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            self.newest += 1
            new = self.newest
            self.names[node][entry.name] = new
            if entry.is_dir():
                self.names[new] = {}
                self._read(Path(entry.path), new)
            else:
                self.content[new] = bytearray(Path(entry.path).read_bytes())

    def copy(self) -> Tree:
        """Return an independent copy."""
        names = {node: dict(found) for node, found in self.names.items()}
        return Tree(names, {node: bytearray(data) for node, data in self.content.items()}, self.newest)

    def find(self, path: str) -> int | None:
        """Return the node at a relative path."""
        node = ROOT
        for part in path.split("/") if path else ():
            found = self.names.get(node, {}).get(part)
            if found is None:
                return None
            node = found
        return node

    def apply(self, op: Op) -> None:
        """Carry out an operation, as far as possible when earlier ones are missing."""
        if op.kind == "make" or op.kind == "name":
            self._enter(op.folder, op.name, op)
        elif op.kind == "unname":
            if self.names.get(op.folder, {}).get(op.name) == op.node:
                del self.names[op.folder][op.name]
        elif op.kind == "move":
            if self.names.get(op.folder, {}).get(op.name) == op.node:
                del self.names[op.folder][op.name]
            self._enter(op.to_folder, op.to_name, op)
        elif op.kind == "write":
            data = self.content.setdefault(op.node, bytearray())
            data.extend(bytes(max(0, op.at - len(data))))
            data[op.at : op.at + len(op.data)] = op.data
        elif op.kind == "resize":
            data = self.content.setdefault(op.node, bytearray())
            data.extend(bytes(max(0, op.at - len(data))))
            del data[op.at :]

    def _enter(self, folder: int, name: str, op: Op) -> None:
        # The name may be on disk before the content.
        self.be_there(op)
        if folder in self.names:
            self.names[folder][name] = op.node

    def be_there(self, op: Op) -> None:
        """Create the node of an operation if needed, perhaps without a name."""
        self.newest = max(self.newest, op.node)
        if op.is_folder:
            self.names.setdefault(op.node, {})
        else:
            self.content.setdefault(op.node, bytearray())

    def put(self, folder: Path) -> None:
        """Make a real folder hold exactly this."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        links: dict[int, str] = {}
        for path, node in self.paths():
            target = f"{folder}/{path}"
            if node in self.names:
                os.mkdir(target)  # noqa: PTH102  # there are many
            elif node in links:
                os.link(links[node], target)
            else:
                links[node] = target
                with open(target, "wb") as file:  # noqa: PTH123  # there are many
                    file.write(self.content[node])

    def paths(self) -> list[tuple[str, int]]:
        """Return all paths, folders before their content."""
        found: list[tuple[str, int]] = []
        waiting = [("", ROOT)]
        while waiting:
            path, node = waiting.pop()
            for name, inner in self.names[node].items():
                found.append((f"{path}{name}", inner))
                if inner in self.names:
                    waiting.append((f"{path}{name}/", inner))
        return found

    def digest(self, counts: Callable[[str], bool]) -> bytes:
        """Return a digest that distinguishes disks by their relevant content."""
        digest = hashlib.blake2b(digest_size=16)
        for path, node in sorted(self.paths()):
            if counts(path):
                data = self.content.get(node)
                digest.update(f"{path}\0{-1 if data is None else len(data)}\0".encode())
                digest.update(data or b"")
        return digest.digest()
