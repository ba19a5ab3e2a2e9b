"""A checkpoint as senders see it: what the job takes, a folder for commands, and receipts that a test writes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.commands.command_catalog import CONTROL_FILE, CommandCatalog, StepEntry
from penstock.commands.receipt_segments import SegmentWriter, kept_receipts
from penstock.control.encoded_receipts import id_hash
from penstock.control.receipts import Receipt

__all__ = ["AT", "ENTRY", "append_lines", "make_checkpoint", "receipts", "write_receipts"]

AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

_KINDS = {
    "set": ("key", "keys", "all"),
    "limit": ("key", "keys", "all"),
    "pause": ("step", "job"),
}
ENTRY = CommandCatalog(
    "rooms",
    "jsonl:/nowhere",
    {
        "heat": StepEntry("int64", _KINDS, ("limit",), ()),
        "names": StepEntry("string", {"set": ("key", "keys")}, ("limit",), ()),
        "pairs": StepEntry("struct<a: int64 not null, b: string not null>", _KINDS, ("limit",), ()),
    },
)


def make_checkpoint(folder: Path, commands: str | None = None) -> Path:
    """A checkpoint whose commands wait in its own folder, unless a URI says where."""
    (folder / "commands").mkdir(parents=True)
    kept_receipts(folder).mkdir()
    place = f"jsonl:{folder / 'commands'}" if commands is None else commands
    entry = msgspec.structs.replace(ENTRY, commands=place)
    (folder / CONTROL_FILE).write_bytes(msgspec.json.encode(entry))
    return folder


def receipts(command_id: str, final: str, batch: int, **more: Any) -> list[Receipt]:
    """The receipts of a command in one micro-batch."""
    fields = {
        "kind": "set",
        "target": "heat/1",
        "version": None,
        "issued_by": "ann",
        "batch": batch,
        "at": AT + dt.timedelta(seconds=batch),
    }
    first = ["ACCEPTED"] if final == "REJECTED" else ["ACCEPTED", "VALIDATED"]
    told = [Receipt(command_id, status, **fields) for status in first]
    return [*told, Receipt(command_id, final, **{**fields, **more})]


def write_receipts(checkpoint: Path, batch: int, found: list[Receipt]) -> None:
    """Write the receipts of a micro-batch as a job does."""
    writer = SegmentWriter(checkpoint)
    writer.open()
    append_lines(writer, batch, msgspec.json.Encoder().encode_lines(found))


def append_lines(writer: SegmentWriter, batch: int, lines: bytes) -> None:
    """Append receipts, as lines, with the hashes of their ids."""
    ids = dict.fromkeys(msgspec.json.decode(line)["id"] for line in lines.splitlines())
    writer.append(batch, lines, np.array([id_hash(one) for one in ids], np.uint64))
