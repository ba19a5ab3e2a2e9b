"""Kinesis sink: records of a stream, at least once, in the order of each partition key, perhaps with origins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.amazon.service_clients import get_client
from penstock.amazon.service_errors import as_external, error_code, is_server_away, is_throttling
from penstock.bindings.amazon_types import KinesisBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.kinesis.kinesis_stream import check_stream
from penstock.kinesis.put_queue import Outgoing, PutQueue
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, SinkTask, TaskContext
from penstock.sinks.field_templates import check_template, fill_template
from penstock.sinks.message_parts import origins_of
from penstock.sinks.patience import Patience

__all__ = ["ORIGIN_FIELD", "KinesisSink"]

ORIGIN_FIELD: Final = "penstock_origin"
"""The field of JSON that tells records apart, so that a reader can leave out those that are written again."""

_NOTHING: Final = re.compile("(?!)")
_MAX_BYTES: Final = 1 << 20
_MAX_KEY: Final = 256
_PATIENCE_S: Final = 60.0
# The place of the error in a request, after the wrong value, which may be long.
_OF_A_RECORD: Final = re.compile(r"at 'records\.\d+\.member\.")
_SHOWN: Final = 200


class KinesisSink:
    """A sink that puts each record, and waits until Kinesis has it.

    Only those that Kinesis has not taken are put again. Records that it never takes are rejected one by one.
    """

    exactly_once = False
    commits_in_tasks = False

    def __init__(self, binding: KinesisBinding, encoder: Encoder, record_type: RecordType) -> None:
        self._binding: Final = binding
        self._encoder: Final = encoder
        if binding.partition_key is not None:
            check_template(binding.stream, "partition key", binding.partition_key, record_type)
        if binding.origin and ORIGIN_FIELD in record_type.field_names:
            raise BindingError(
                f"Sink {binding.stream!r}: origin=true adds the field {ORIGIN_FIELD}, which the records have already. "
                "Rename it in the job, or leave origin out."
            )

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # Kinesis keeps no number
        """Return -1: Kinesis does not know micro-batches."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # nothing is fixed
        """Check that the stream is there."""
        check_stream(self._binding)

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # the encoder knows
        """Return a task whose records Kinesis has when they are written."""
        return _PutTask(self._binding, self._encoder, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:
        """Do nothing: Kinesis has the records."""


class _PutTask(RejectingTask):
    """A task that puts the records of a block, and waits until Kinesis has taken them."""

    def __init__(self, binding: KinesisBinding, encoder: Encoder, context: TaskContext) -> None:
        super().__init__()
        self._binding: Final = binding
        self._encoder: Final = encoder
        self._context: Final = context
        self._client: Final = get_client(binding)
        self._unkeyed = 0

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:
        bodies = self._bodies(batch)
        names = self._partition_keys(batch, keys)
        waiting: list[Outgoing] = []
        refused: dict[int, str] = {}
        for row, (name, body) in enumerate(zip(names, bodies, strict=True)):
            if body is None:
                refused[row] = "Its value is null, and a record of Kinesis has bytes."
            elif name is None:
                refused[row] = (
                    f"A field of its partition key {self._binding.partition_key!r} is null or empty."
                )
            elif len(name) > _MAX_KEY:
                refused[row] = f"Its partition key has {len(name)} characters, and Kinesis takes {_MAX_KEY}."
            elif (one := Outgoing(row, name, body)).size > _MAX_BYTES:
                refused[row] = (
                    f"With its partition key it has {one.size} bytes, and Kinesis takes {_MAX_BYTES}."
                )
            else:
                waiting.append(one)
        self._put(PutQueue(waiting, keeps_order=self._binding.order == "key"), refused)
        self._reject(refused, lambda row: bodies[row] or b"", _MAX_BYTES)

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing: records that were put stay."""

    def _bodies(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        """Return the data of each record; None where a record is a null."""
        bodies: list[Any] = self._encoder.encode(batch).to_pylist()
        if not (self._binding.origin and self._origin is not None):
            return bodies
        origins = origins_of(self._context, self._origin).to_pylist()
        return [with_origin(body, origin) for body, origin in zip(bodies, origins, strict=True)]

    def _partition_keys(self, batch: pa.RecordBatch, keys: pa.Array | None) -> Sequence[str | None]:
        """Return the partition key of each record; None if it cannot have one."""
        if self._binding.partition_key is not None:
            return fill_template(self._binding.partition_key, batch, _NOTHING)
        found: Sequence[bytes | None] = [None] * len(batch) if keys is None else keys.to_pylist()
        return [self._next_number() if key is None else _text(key) for key in found]

    def _next_number(self) -> str:
        self._unkeyed += 1
        return f"{self._context.partition}-{self._unkeyed}"

    def _put(self, queue: PutQueue, refused: dict[int, str]) -> None:
        """Put records until Kinesis has all that it takes. Raises ExternalSystemError if it takes none for a minute."""
        patience = Patience(_PATIENCE_S)
        while queue:
            taken = queue.take()
            failed, reason = self._ask(taken, refused)
            queue.settle(taken, failed)
            if not failed:
                patience.begin()
            elif not patience.rest(has_progressed=len(failed) < len(taken)):
                raise ExternalSystemError(
                    f"Sink {self._binding.stream!r}: {self._binding.where} takes no records ({reason}), for "
                    f"{_PATIENCE_S:g} s. The records are sent again when the job starts again; give the stream more "
                    "shards if it is too slow."
                )

    def _ask(self, taken: Sequence[Outgoing], refused: dict[int, str]) -> tuple[set[int], str]:
        """Put some records; return the rows that Kinesis has not taken, and why. Note those that it never takes."""
        import botocore.exceptions

        records = [{"Data": one.data, "PartitionKey": one.key} for one in taken]
        try:
            answer = self._client.put_records(StreamName=self._binding.name, Records=records)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as e:
            reason = " ".join(str(e).split())
            if is_throttling(e) or is_server_away(e):
                return {one.row for one in taken}, reason
            of_a_record = _OF_A_RECORD.search(reason)
            if error_code(e) == "ValidationException" and of_a_record is not None:
                return self._ask_halves(taken, reason[of_a_record.start() :], refused)
            with as_external(self._binding):
                raise
        if not answer.get("FailedRecordCount"):
            return set(), ""
        return _failed(taken, answer)

    def _ask_halves(
        self, taken: Sequence[Outgoing], reason: str, refused: dict[int, str]
    ) -> tuple[set[int], str]:
        """Put records of which Kinesis has refused one, and with it all, in halves; a single one is refused."""
        if len(taken) == 1:
            refused[taken[0].row] = f"{self._binding.where} refuses it: a value {reason[:_SHOWN]}"
            return set(), ""
        half = len(taken) // 2
        first, why = self._ask(taken[:half], refused)
        rest, why_rest = self._ask(taken[half:], refused)
        return first | rest, why_rest or why


def _failed(taken: Sequence[Outgoing], answer: Mapping[str, Any]) -> tuple[set[int], str]:
    pairs = zip(taken, answer["Records"], strict=True)
    failed = {one.row: result for one, result in pairs if result.get("ErrorCode")}
    last: Mapping[str, Any] = next(reversed(failed.values()), {})
    return set(failed), f"{last.get('ErrorCode', '')}: {last.get('ErrorMessage', '')}"


def with_origin(body: bytes, origin: bytes) -> bytes:
    """Return a JSON object with the origin as its last field.

    >>> with_origin(b'{"id":1}', b"a/b/0/1/0")
    b'{"id":1,"penstock_origin":"a/b/0/1/0"}'
    """
    comma = b"" if body == b"{}" else b","
    return b'%b%b"%b":%b}' % (body[:-1], comma, ORIGIN_FIELD.encode(), msgspec.json.encode(origin.decode()))


def _text(key: bytes) -> str:
    """Return a key as text; bytes that are none as hexadecimal digits."""
    try:
        return key.decode() or "-"
    except UnicodeDecodeError:
        return key.hex()
