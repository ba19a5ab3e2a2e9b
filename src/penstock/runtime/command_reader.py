"""Command reader: turn the records of the command stream into admitted commands. Runs in workers."""

from __future__ import annotations

import errno
import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.base.garbage import no_cyclic_collection
from penstock.control.admitted_commands import AdmittedCommand, commands_for_slot, encode_commands
from penstock.control.command_decoder import decode_command
from penstock.control.commands import Command, CommandError, CommandFormat, DumpRequest
from penstock.control.receipts import RecordPosition
from penstock.engine.command_validation import payload_of
from penstock.engine.slot import Slot
from penstock.errors import ExternalSystemError
from penstock.models.library import DEFAULT_MAX_MODEL_BYTES, ModelLibrary
from penstock.models.orders import MODEL_ORDERS
from penstock.models.refusals import ModelRefusedError
from penstock.operators.record_blocks import DeadLetter
from penstock.records.schemas import record_type
from penstock.runtime.packed_rows import (
    CHECKPOINT_COMMANDS,
    FETCHED,
    SLOT_COMMANDS,
    PackedRow,
    counts_row,
    packed_batches,
    times_row,
)
from penstock.runtime.plan import JobPlan
from penstock.runtime.router import dead_letter_rows
from penstock.sources.base import SourceChunk
from penstock.sources.chunk_times import TimesOfChunks
from penstock.sources.fetched import FetchedFiles, kept_name
from penstock.streams.graph import COMMANDS, SourceNode

__all__ = ["COMMAND_NODE", "CommandReader"]

COMMAND_NODE: Final = SourceNode(
    f"source/{COMMANDS}", COMMANDS, True, record_type("command BINARY"), protobuf=None, allow_nan=False
)
"""The source of commands that every job with a keyed step has."""

# For these a task keeps what it has found outside, if it looks for anything.
_KEEPING: Final = frozenset({"reload-config", "dump-state", *MODEL_ORDERS})

# The dead letter of a malformed command holds at most this much of it.
_SHOWN_BYTES: Final = 4096


@dataclass(frozen=True)
class CommandReader:
    """A reader that turns the chunks of the command stream into admitted commands, one packed row for each slot.

    With `models_beside` the driver examines models, and no command waits for that. Otherwise this reader examines them,
    with `examines_apart` in other processes.
    """

    plan: JobPlan
    format: CommandFormat
    max_bytes: int
    fetched: FetchedFiles
    node: SourceNode = COMMAND_NODE
    max_model_bytes: int = DEFAULT_MAX_MODEL_BYTES
    examines_apart: bool = True
    models_beside: bool = False

    def batches(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the commands as packed Arrow batches. `now_ms` is when they were planned."""
        return packed_batches(self.rows(chunks, now_ms), self.plan.slots)

    def rows(self, chunks: Iterable[SourceChunk], now_ms: int | None = None) -> Iterator[PackedRow]:
        """Yield the same, row by row."""
        times = TimesOfChunks(now_ms)
        for chunk in chunks:
            times.add(chunk)
            with no_cyclic_collection():
                admitted, letters, kept = self._read(chunk)
            yield from dead_letter_rows(letters, self.plan)
            yield from (counts_row(FETCHED, name, 1) for name in kept)
            for destination, some in self._split_by_destination(admitted):
                for slot in self.plan.slot_of.values():
                    concerns = functools.partial(_concerns, slot)
                    body = encode_commands(commands_for_slot(some, slot.own, concerns))
                    yield PackedRow(destination, slot.key_groups[0], 0, chunk.partition, 0, body)
        if not self.plan.in_real_time:
            yield from times_row(COMMANDS, times.read)

    def _split_by_destination(
        self, admitted: list[AdmittedCommand]
    ) -> list[tuple[str, list[AdmittedCommand]]]:
        """Separate commands for the end of the interval. The cut of a micro-batch is at once and at the checkpoint."""
        if not self.plan.in_real_time:
            return [(SLOT_COMMANDS, admitted)] if admitted else []
        at_once = [one for one in admitted if one.refusal or one.command.apply == "at-once"]
        later = [one for one in admitted if not one.refusal and one.command.apply == "at-checkpoint"]
        return [(to, some) for to, some in ((SLOT_COMMANDS, at_once), (CHECKPOINT_COMMANDS, later)) if some]

    def _read(self, chunk: SourceChunk) -> tuple[list[AdmittedCommand], list[DeadLetter], list[str]]:
        """Return the commands of a chunk, sorted by position, its dead letters, and the names of what is kept."""
        accepting = self.plan.accepting
        commands: list[tuple[RecordPosition, Command]] = []
        refused: list[AdmittedCommand] = []
        letters: list[DeadLetter] = []
        kept: list[str] = []
        for place, raw in self._places(chunk):
            try:
                command = self._decode(raw)
            except CommandError as e:
                refused.append(accepting.refuse_malformed(e, place))
                shown = raw[:_SHOWN_BYTES]
                letters.append(DeadLetter(str(e), COMMANDS, "", place.partition, place.offset, shown))
                continue
            if command.kind in _KEEPING:
                kept.append(kept_name(_name_of(place), command.id))
            try:
                commands.append((place, self._with_content(command, place)))
            except CommandError as e:
                refused.append(accepting.refuse(place, command, str(e)))
        for bad in chunk.bad:
            place = RecordPosition(COMMANDS, bad.partition, bad.offset)
            refused.append(accepting.refuse_malformed(CommandError(bad.reason), place))
            letters.append(DeadLetter.of_bad_record(COMMANDS, bad))
        admitted = accepting.admit(commands)
        if refused:
            admitted = sorted([*admitted, *refused], key=operator.attrgetter("place"))
        return admitted, letters, kept

    def _places(self, chunk: SourceChunk) -> Iterator[tuple[RecordPosition, bytes]]:
        assert chunk.raw is not None
        for offset, raw in zip(chunk.offsets.to_pylist(), chunk.raw.to_pylist(), strict=True):
            yield RecordPosition(COMMANDS, chunk.partition, offset), raw or b""

    def _decode(self, raw: bytes) -> Command:
        return decode_command(raw, self.format, self.max_bytes)

    def _with_content(self, command: Command, place: RecordPosition) -> Command:
        """Return a reload-config with the content of its file, and any other command unchanged.

        Raises CommandError for a place that is not allowed.
        """
        if command.kind in MODEL_ORDERS:
            self._check_model(command, place)
            return command
        if command.kind not in ("reload-config", "dump-state"):
            return command
        payload: Any = msgspec.json.decode(command.payload)
        name = _name_of(place)
        if command.kind == "dump-state":
            to = payload.get("to") if isinstance(payload, dict) else None
            # Any other payload is refused later, when it is validated.
            if isinstance(to, str):
                self.fetched.check_write(DumpRequest(to).place(0), name, command.id)
            return command
        uri = payload.get("from") if isinstance(payload, dict) else None
        if not isinstance(uri, str):
            raise CommandError('the payload of reload-config must be {"from": "FILE or URI"}', command.id)
        content = self.fetched.json_of(uri, name, command.id)
        return msgspec.structs.replace(command, payload=msgspec.Raw(content))

    def _check_model(self, command: Command, place: RecordPosition) -> None:
        """Check what depends on the outside world in a command on a model: places, contents and times.

        Raises CommandError with the reason; a replay gets the same answer. An invalid command is left to validation.
        """
        step = self.plan.accepting.steps.get(command.target.step)
        if step is None or command.kind in step.handlers or command.kind not in step.kinds:
            return
        try:
            order = payload_of(command, MODEL_ORDERS[command.kind])
        except msgspec.MsgspecError:
            return
        declared = step.models.get(order.model)
        if declared is None or order.version is None:
            return

        assert self.plan.library is not None
        library = ModelLibrary(
            self.plan.library,
            self.fetched.allowed,
            self.max_model_bytes,
            isolated=self.examines_apart,
            beside=self.models_beside,
        )

        def check() -> bytes:
            try:
                library.check(step.step, order, declared.spec)
            except ModelRefusedError as e:
                raise CommandError(str(e), command.id) from None
            except ExternalSystemError as e:
                # The library cannot be reached, which says nothing about the command.
                raise OSError(errno.EIO, str(e)) from e
            return b"null"

        self.fetched.find_once(_name_of(place), command.id, check)


def _name_of(place: RecordPosition) -> str:
    """Return the place of a command as the name of what is kept for it has it."""
    return f"{place.partition}-{place.offset}"


def _concerns(slot: Slot, admitted: AdmittedCommand) -> bool:
    """Return whether a slot needs more of a command than its id."""
    if admitted.refusal:
        return slot.first
    return not admitted.key_groups or not slot.own.isdisjoint(admitted.key_groups)
