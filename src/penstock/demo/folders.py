"""Folders: rooms and job communicate through files of JSON lines, with nothing else to install."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.unread_files import found_files
from penstock.demo.feeds import COMMANDS, READINGS, SETTINGS, Batch, Record
from penstock.runtime.cuts import read_cut

__all__ = ["FolderEvidence", "Folders"]


class Folders:
    """One folder for each stream, under `root`."""

    place: Final = "folders on this machine"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written = {READINGS: 0, SETTINGS: 0}
        self._read: set[str] = set()
        self._encoder = msgspec.json.Encoder()
        self.bindings: Mapping[str, str] = {}
        for stream in (READINGS, SETTINGS, COMMANDS):
            (root / stream).mkdir(parents=True)
            # Escape characters of the path that are special in a URI.
            quoted = str(root / stream).replace("%", "%25").replace("?", "%3F")
            self.bindings = {**self.bindings, stream: f"jsonl:{quoted}"}

    def send(self, stream: str, records: Sequence[Record]) -> None:
        """Write one file atomically: the job sees all of it or nothing."""
        if not records:
            return
        self._written[stream] += 1
        path = self._root / stream / f"{self._written[stream]:010}.jsonl"
        hidden = path.with_name(path.name + ".tmp")
        hidden.write_bytes(self._encoder.encode_lines(records))
        hidden.rename(path)

    def new_commands(self) -> list[Record]:
        """Return the commands in files that have appeared since the last call."""
        names = sorted({path.name for path in (self._root / COMMANDS).glob("part-*.jsonl")} - self._read)
        self._read.update(names)
        return [command for name in names for command in _lines(self._root / COMMANDS / name)]

    def evidence(self, checkpoint: str) -> FolderEvidence:
        """Return new evidence, from the first micro-batch on."""
        return FolderEvidence(Path(checkpoint), self._root / COMMANDS)


class FolderEvidence:
    """A reader of the files that the checkpoint lists for each micro-batch, and of the files that the batch wrote."""

    tells_batch: Final = True

    def __init__(self, checkpoint: Path, commands: Path) -> None:
        self._checkpoint = checkpoint
        self._commands = commands
        self._position = {READINGS: 0, SETTINGS: 0}
        self._found = {stream: found_files(checkpoint, stream) for stream in (READINGS, SETTINGS)}

    def batch(self, batch_id: int) -> Batch:
        """Return the input of a micro-batch."""
        ends = read_cut(self._checkpoint, batch_id).ends
        found = {}
        for stream in (SETTINGS, READINGS):
            end = ends.get(stream, self._position[stream])
            assert isinstance(end, int)
            found[stream] = self._records(stream, end)
        return Batch(batch_id, found[SETTINGS], found[READINGS])

    def _records(self, stream: str, end: int) -> list[Record]:
        start, self._position[stream] = self._position[stream], end
        found = self._found[stream]
        found.refresh()
        # Within a batch, files count in the order of their names, whatever the order in which they were found.
        files = sorted(found.between(start, end), key=lambda file: file.name)
        return [record for file in files for record in _lines(Path(file.path))]

    def commands(self, batch_id: int) -> list[Record]:
        """Return the commands that a micro-batch wrote."""
        files = sorted(self._commands.glob(f"part-*-{batch_id:010}.jsonl"))
        return [record for path in files for record in _lines(path)]

    def close(self) -> None:
        """Do nothing: no files are open."""


def _lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
