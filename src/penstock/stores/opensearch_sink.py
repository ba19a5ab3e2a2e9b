"""OpenSearch sink: each record as a document, idempotent by id; older writes change nothing, by their versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec
import numpy as np
import pyarrow as pa

from penstock.bindings.versioned_types import OpenSearchBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, SinkTask, TaskContext, VersionedSink
from penstock.sinks.patience import Patience
from penstock.stores.bulk_answers import BulkAnswer, Fate, fate_of
from penstock.stores.key_templates import KeyTemplate
from penstock.stores.opensearch_clients import check_server, failed, get_client, refuse
from penstock.tables.changes import DELETE, change_codes, row_type

__all__ = ["OpenSearchSink"]

_BULK_BYTES: Final = 5 << 20
_BULK_OPERATIONS: Final = 2_000
# The server takes requests of 100 MB by default.
_MAX_BYTES: Final = 100 << 20
_MAX_ID_BYTES: Final = 512
_PASSING: Final = (429, 500, 502, 503, 504)

_SHOWN: Final = 200

_encode: Final = msgspec.json.Encoder().encode
_answers: Final = msgspec.json.Decoder(BulkAnswer)


@dataclass(frozen=True)
class _Target:
    """What tasks write, and where: only plain values."""

    binding: OpenSearchBinding
    encoder: Encoder
    names: tuple[str, ...]
    index: KeyTemplate
    id: KeyTemplate
    takes_changes: bool


class OpenSearchSink(VersionedSink):
    """A sink that writes each record as a document, and deletes what an upsert deletes.

    A write has the version of its micro-batch, and the number of the record in the task, as an external version. The
    server refuses a write whose version is less than that of the document, so a write may be sent again at any time.
    """

    exactly_once = False
    commits_in_tasks = True

    def __init__(
        self,
        binding: OpenSearchBinding,
        encoder: Encoder,
        record_type: RecordType,
        upsert_key: Sequence[str] | None = None,
    ) -> None:
        rows = record_type if upsert_key is None else row_type(record_type)
        index, name = (KeyTemplate(binding.stream, part, rows) for part in (binding.index, binding.id))
        if upsert_key is not None and set(upsert_key) != {*index.fields, *name.fields}:
            raise BindingError(
                f"Sink {binding.stream!r} takes upserts, and their key is ({', '.join(upsert_key)}). The id and the "
                f"index in its URI must together have exactly these fields in braces; they are {binding.id!r} and "
                f"{binding.index!r}."
            )
        self._target: Final = _Target(
            binding, encoder, tuple(rows.field_names), index, name, upsert_key is not None
        )

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # later writes replace earlier ones
        """Return -1: rows that are there may be written again."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # documents keep it
        """Check that the server answers, and takes the login."""
        check_server(self._target.binding)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task whose documents the server has when they are written."""
        return _DocumentTask(self._target, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: the server has the documents."""


@dataclass(frozen=True)
class _Operation:
    """An operation of a bulk request, for a row of the block: its name and its lines."""

    row: int
    name: str
    lines: bytes


class _DocumentTask(RejectingTask):
    """A task that writes the records of a block, and waits until the server has them."""

    def __init__(self, target: _Target, context: TaskContext) -> None:
        super().__init__()
        assert context.version > 0, "documents need the version of their micro-batch"
        self._target: Final = target
        self._binding: Final = target.binding
        self._version = context.version
        self._client: Final = get_client(target.binding)

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # the templates have them
        refused: dict[int, str] = {}
        documents = self._target.encoder.encode(batch.select(self._target.names)).to_pylist()
        operations = self._operations(batch, documents, refused)
        self._version += len(batch)
        first = 0
        while first < len(operations):
            # A document that is larger than that goes alone: servers may take so much only from time to time, or never.
            end, size = first + 1, len(operations[first].lines)
            while end < len(operations) and end - first < _BULK_OPERATIONS:
                size += len(operations[end].lines)
                if size > _BULK_BYTES:
                    break
                end += 1
            self._send(operations[first:end], refused)
            first = end
        self._reject(refused, documents.__getitem__, _MAX_BYTES)

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing: written rows stay until they are written again."""

    def _operations(
        self, batch: pa.RecordBatch, documents: Sequence[bytes], refused: dict[int, str]
    ) -> list[_Operation]:
        """Return the operations of a block; leave out, and give the reason for, records without an id or an index."""
        target = self._target
        gone = (
            change_codes(batch) == DELETE if target.takes_changes else np.zeros(len(batch), bool)
        ).tolist()
        indices, ids = target.index.keys(batch).to_pylist(), target.id.keys(batch).to_pylist()
        found = []
        for row, (index, name, document) in enumerate(zip(indices, ids, documents, strict=True)):
            if index is None or name is None:
                what = f"id {self._binding.id!r}" if name is None else f"index {self._binding.index!r}"
                refused[row] = f"A field of its {what} is null."
                continue
            if not name or len(name.encode()) > _MAX_ID_BYTES:
                # The server would refuse the whole request.
                refused[row] = (
                    f"Its id {self._binding.id!r} has {len(name.encode())} bytes, and may have 1 to {_MAX_ID_BYTES}."
                )
                continue
            place = {
                "_index": index,
                "_id": name,
                "version": self._version + row,
                "version_type": "external_gte",
            }
            operation = "delete" if gone[row] else "index"
            lines = _encode({operation: place}) + b"\n"
            found.append(_Operation(row, operation, lines if gone[row] else lines + document + b"\n"))
        return found

    def _send(self, operations: Sequence[_Operation], refused: dict[int, str]) -> None:
        """Write operations, and again those that the server could not write at once."""
        patience = Patience(self._binding.retry_s)
        while operations:
            tried = len(operations)
            answer = self._post(operations)
            if answer == _TOO_LARGE:
                self._send_halves(operations, refused)
                return
            reason = answer
            if not isinstance(answer, str):
                operations, reason = self._left(operations, answer, refused)
            if not operations:
                return
            if not patience.rest(has_progressed=len(operations) < tried):
                if not _is_too_large(operations, str(reason)):
                    raise failed(self._binding, str(reason))
                self._refuse_large(operations[0], str(reason), refused)
                return

    def _post(self, operations: Sequence[_Operation]) -> BulkAnswer | str:
        """Return the answer to a request; in words if it has to be sent again."""
        try:
            answer = self._client.post(
                "/_bulk",
                content=b"".join(one.lines for one in operations),
                params={"filter_path": "errors,items.*.status,items.*.error"},
                headers={"Content-Type": "application/x-ndjson"},
            )
        except httpx.TransportError as e:
            return f"{type(e).__name__}: {e}"
        if answer.status_code == 413:
            return _TOO_LARGE
        if answer.status_code in _PASSING:
            return f"{answer.status_code} {' '.join(answer.text[:500].split())}"
        refuse(self._binding, answer)
        try:
            return _answers.decode(answer.content)
        except msgspec.MsgspecError as e:
            raise failed(self._binding, f"it answers {answer.text[:_SHOWN]!r}") from e

    def _left(
        self, operations: Sequence[_Operation], answer: BulkAnswer, refused: dict[int, str]
    ) -> tuple[list[_Operation], str]:
        """Return the operations that have to be sent again, and why. Raises errors that no record caused."""
        if not answer.errors:
            return [], ""
        left, reason = [], ""
        for operation, items in zip(operations, answer.items, strict=True):
            (item,) = items.values()
            match fate_of(operation.name, item):
                case Fate.PASSING:
                    left.append(operation)
                    reason = f"{item.status} {item.reason}"
                case Fate.REFUSED:
                    refused[operation.row] = f"{self._binding.url} refuses it: {item.reason}"
                case Fate.FATAL:
                    raise ExternalSystemError(
                        f"Sink {self._binding.stream!r}: {self._binding.place} takes no documents ({item.status} "
                        f"{item.reason}). Correct the index or the user's rights, and start the job again."
                    )
                case Fate.DONE:
                    pass
        return left, reason

    def _send_halves(self, operations: Sequence[_Operation], refused: dict[int, str]) -> None:
        """Write what is too large for a request in halves; a document that is too large alone is refused."""
        if len(operations) == 1:
            self._refuse_large(operations[0], _TOO_LARGE, refused)
            return
        half = len(operations) // 2
        self._send(operations[:half], refused)
        self._send(operations[half:], refused)

    def _refuse_large(self, operation: _Operation, reason: str, refused: dict[int, str]) -> None:
        size = len(operation.lines)
        refused[operation.row] = (
            f"It has {size} bytes, more than {self._binding.url} takes ({reason[:_SHOWN]})."
        )


def _is_too_large(operations: Sequence[_Operation], reason: str) -> bool:
    """Return whether a server that takes nothing may only have too little memory for a large document."""
    return len(operations) == 1 and len(operations[0].lines) > _BULK_BYTES and reason.startswith("429")


_TOO_LARGE: Final = "413"
