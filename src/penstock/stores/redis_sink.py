"""Redis sink: each record under a key of its own, idempotent by key; older runs and attempts write nothing more."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bindings.types import RedisBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, SinkTask, TaskContext
from penstock.stores.field_texts import field_texts
from penstock.stores.key_templates import KeyTemplate
from penstock.stores.redis_clients import as_external, get_client
from penstock.stores.redis_scripts import NO_FENCE, OTHER_RUN, WRITE_HASHES, WRITE_TEXTS, WRITTEN
from penstock.stores.refused_rows import bodies_of
from penstock.tables.changes import DELETE, change_codes, row_type

__all__ = ["RedisSink"]

# A script runs as a whole, and the server does nothing else meanwhile: about a millisecond with these.
_RECORDS_PER_SCRIPT: Final = 500
_BYTES_PER_SCRIPT: Final = 1 << 20
_SCRIPTS_AT_ONCE: Final = 16
# The server takes 512 MB by default.
_MAX_BYTES: Final = 256 << 20

_FENCE: Final = "penstock:fence:"

_pack: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class _Target:
    """What tasks write, and where: only plain values."""

    binding: RedisBinding
    encoder: Encoder
    names: tuple[str, ...]
    template: KeyTemplate
    takes_changes: bool
    run: str

    @property
    def script(self) -> str:
        """The script that writes records."""
        return WRITE_HASHES if self.binding.type == "hash" else WRITE_TEXTS

    def fence(self, lineage: str) -> str:
        """Return the key of the fence of a lineage."""
        return f"{_FENCE}{lineage}:{self.binding.stream}"


class RedisSink:
    """A sink that writes each record as a hash or a string, and deletes what an upsert deletes.

    A start puts the name of its run into the fence, a hash beside the values, and each sink partition there puts the
    newest attempt at its newest micro-batch. What an older run or attempt still sends is refused.
    """

    exactly_once = False
    commits_in_tasks = True

    def __init__(
        self,
        binding: RedisBinding,
        encoder: Encoder,
        record_type: RecordType,
        upsert_key: Sequence[str] | None = None,
    ) -> None:
        rows = record_type if upsert_key is None else row_type(record_type)
        template = KeyTemplate(binding.stream, binding.key, rows)
        if upsert_key is not None and set(upsert_key) != set(template.fields):
            raise BindingError(
                f"Sink {binding.stream!r} takes upserts, and their key is ({', '.join(upsert_key)}). The key in its "
                f"URI must have exactly these fields in braces; it is {binding.key!r}."
            )
        names = tuple(rows.field_names)
        self._target: Final = _Target(
            binding, encoder, names, template, upsert_key is not None, uuid.uuid4().hex
        )

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # a start begins anew
        """Return -1: rows that are there may be written again."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # the server keeps it
        """Check that the server can be written to, and put this run into the fence."""
        target = self._target
        client, fence = get_client(target.binding), target.fence(lineage)
        with as_external(target.binding):
            client.script_load(target.script)
            with client.pipeline(transaction=True) as pipeline:
                pipeline.delete(fence)
                pipeline.hset(fence, "run", target.run)
                pipeline.execute()

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task whose values the server has when they are written."""
        return _KeyTask(self._target, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the server has the values."""


@dataclass(frozen=True)
class _Chunk:
    """Records that follow each other: their rows, their keys, and what the script writes."""

    rows: Sequence[int]
    keys: Sequence[str]
    packed: bytes


class _KeyTask(RejectingTask):
    """A task that writes the records of a block, and waits until the server has them."""

    def __init__(self, target: _Target, context: TaskContext) -> None:
        super().__init__()
        self._target: Final = target
        self._binding: Final = target.binding
        self._context: Final = context
        self._client: Final = get_client(target.binding)
        self._script: Final = self._client.register_script(target.script)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # the template has them
        refused: dict[int, str] = {}
        with as_external(self._binding):
            chunks = self._chunks(batch, refused)
            while at_once := list(itertools.islice(chunks, _SCRIPTS_AT_ONCE)):
                self._send(at_once, refused)
        self._reject(refused, bodies_of(batch.select(self._target.names), self._target.encoder), _MAX_BYTES)

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing: written rows stay until they are written again."""

    def _chunks(self, batch: pa.RecordBatch, refused: dict[int, str]) -> Iterator[_Chunk]:
        """Return the records in parts of moderate size; leave out, and give the reason for, those without a key."""
        keys = self._target.template.keys(batch)
        rows = np.arange(len(batch))
        is_fence = pc.starts_with(keys, _FENCE)
        if keys.null_count or is_fence.true_count:
            for row in np.flatnonzero(keys.is_null()).tolist():
                refused[row] = f"A field of its key {self._binding.key!r} is null."
            for row in np.flatnonzero(is_fence.fill_null(False)).tolist():
                refused[row] = f"Its key begins with {_FENCE}, as those do in which sinks note who may write."
            rows = np.flatnonzero(pc.invert(is_fence).fill_null(False))
            keys, batch = keys.take(pa.array(rows)), batch.take(pa.array(rows))
        bytes_per_record = max(1, batch.nbytes // max(1, len(batch)))
        size = max(1, min(_RECORDS_PER_SCRIPT, _BYTES_PER_SCRIPT // bytes_per_record))
        for first in range(0, len(batch), size):
            yield from self._packed(
                rows[first : first + size].tolist(),
                keys.slice(first, size),
                batch.slice(first, size),
                refused,
            )

    def _packed(
        self, rows: Sequence[int], keys: pa.Array, batch: pa.RecordBatch, refused: dict[int, str]
    ) -> Iterator[_Chunk]:
        """Return a chunk, or more where it would be too large for the server."""
        packed = self._pack(batch)
        if len(packed) <= _MAX_BYTES:
            yield _Chunk(rows, keys.to_pylist(), packed)
        elif len(rows) == 1:
            refused[rows[0]] = f"It has {len(packed)} bytes, and a value may have {_MAX_BYTES}."
        else:
            half = len(rows) // 2
            yield from self._packed(rows[:half], keys.slice(0, half), batch.slice(0, half), refused)
            yield from self._packed(rows[half:], keys.slice(half), batch.slice(half), refused)

    def _pack(self, batch: pa.RecordBatch) -> bytes:
        target = self._target
        gone = (change_codes(batch) == DELETE).tolist() if target.takes_changes else None
        if self._binding.type == "hash":
            columns = [_packable(batch.column(name)) for name in target.names]
        else:
            columns = [target.encoder.encode(batch.select(target.names)).cast(pa.string()).to_pylist()]
        return _pack((gone, target.names, columns))

    def _send(self, chunks: Sequence[_Chunk], refused: dict[int, str]) -> None:
        """Write chunks in their order; a chunk is written as a whole or not at all."""
        import redis

        try:
            answers = self._evaluate(chunks)
        except redis.exceptions.NoScriptError:
            # The server was restarted, or its scripts were flushed.
            self._client.script_load(self._target.script)
            answers = self._evaluate(chunks)
        for chunk, answer in zip(chunks, answers, strict=True):
            if answer[0] != WRITTEN:
                raise ExternalSystemError(self._why_not(answer[0]))
            for number, reason in zip(answer[1::2], answer[2::2], strict=True):
                refused[chunk.rows[number]] = (
                    f"{self._binding.host}:{self._binding.port} refuses the value of the key "
                    f"{chunk.keys[number]!r}: {reason.decode(errors='replace')}"
                )

    def _evaluate(self, chunks: Sequence[_Chunk]) -> list[Any]:
        context, target = self._context, self._target
        fence = target.fence(context.lineage)
        place = (target.run, context.partition, context.batch_id, context.attempt, self._binding.ttl_s or 0)
        with self._client.pipeline(transaction=False) as pipeline:
            for chunk in chunks:
                count = len(chunk.keys) + 1
                pipeline.evalsha(self._script.sha, count, fence, *chunk.keys, *place, chunk.packed)
            # Its own errors would repeat the records.
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        error = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if error is not None:
            raise error
        return answers

    def _why_not(self, answer: bytes) -> str:
        sink = f"Sink {self._binding.stream!r}"
        if answer == NO_FENCE:
            fence = self._target.fence(self._context.lineage)
            return (
                f"{sink}: {self._binding.host}:{self._binding.port} no longer has the key {fence}, so it has lost data "
                "since the start of this run, or somebody has deleted the key. Start the job again, which writes the "
                "newest micro-batch again."
            )
        who = "a later run of the job" if answer == OTHER_RUN else "a later attempt"
        return f"{sink}: {who} writes to {self._binding.place} by now. This one writes nothing more."


def _packable(column: pa.Array) -> Sequence[Any]:
    """Return the texts of a column, where bytes are packed as text: scripts know no bytes of MessagePack."""
    texts = field_texts(column)
    if not pa.types.is_binary(column.type):
        return texts
    return [
        None if value is None else msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)
        for value in texts
    ]
