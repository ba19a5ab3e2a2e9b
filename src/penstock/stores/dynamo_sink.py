"""DynamoDB sink: each record an item under its key, idempotent by key; older runs and attempts write nothing more.

Each item has an attribute `penstock_mark`: the sink that has written it, and the run, the micro-batch, the attempt and
the request, each in as many digits. A write is refused where the item has a later mark of the same sink.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.amazon.service_clients import get_client
from penstock.amazon.service_errors import as_external, error_code, is_server_away, is_throttling
from penstock.base.durable import write_atomically
from penstock.bindings.amazon_types import DynamoBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.types import RecordType
from penstock.sinks.base import Encoder, RejectingTask, SinkTask, TaskContext
from penstock.sinks.patience import Patience
from penstock.sinks.sink_notes import noting_errors
from penstock.stores.dynamo_values import Attribute, attributes, item_bytes, key_kind
from penstock.stores.refused_rows import bodies_of
from penstock.tables.changes import DELETE, change_codes, row_type

__all__ = ["DELETED", "EXPIRES", "MARK", "DynamoSink", "check_table"]

MARK: Final = "penstock_mark"
"""The attribute that says which run has written an item, and when."""
DELETED: Final = "penstock_deleted"
"""The attribute of an item whose row is deleted."""
EXPIRES: Final = "penstock_expires"
"""The attribute with the second since 1970 from which on such an item is not needed any more."""

_OWN: Final = (MARK, DELETED, EXPIRES)
_KEPT_S: Final = 86_400
_MAX_BYTES: Final = 400 << 10
_PATIENCE_S: Final = 60.0
# The service answers questions about tables for all jobs of an account together.
_CHECKED_EVERY_S: Final = 5.0
_KEY_CHECKED_EVERY_S: Final = 60.0
# Another writer changes the same items at this moment.
_CONFLICTS: Final = ("TransactionConflictException", "ReplicatedWriteConflictException")
_CONDITION: Final = "attribute_not_exists(#m) OR NOT begins_with(#m, :s) OR #m <= :m"


@dataclass(frozen=True)
class _Target:
    """What tasks write, and where: only plain values. `key` has the attributes of the key, each with its type."""

    binding: DynamoBinding
    encoder: Encoder
    names: tuple[str, ...]
    key: Mapping[str, str]
    takes_changes: bool
    run: int

    def require_key(self, key: Mapping[str, str]) -> None:
        """Raise ExternalSystemError unless the table has the key that it had at the start of the run."""
        if list(key.items()) != list(self.key.items()):
            raise ExternalSystemError(
                f"Sink {self.binding.stream!r}: {self.binding.where} was made anew since the start of this run, with "
                f"the key {', '.join(key)}. Start the job again, which checks it; what was not committed is written "
                "again."
            )

    def sink(self, lineage: str) -> str:
        """Return the beginning of all marks of this sink."""
        return f"{lineage}/{self.binding.stream}/"


def check_table(binding: DynamoBinding) -> dict[str, str]:
    """Return the attributes of the key of a table, each with its type. Raises as a start does."""
    client = get_client(binding)
    with as_external(binding):
        found = client.describe_table(TableName=binding.table)["Table"]
    kinds = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    ordered = sorted(found["KeySchema"], key=lambda one: str(one["KeyType"]))
    return {one["AttributeName"]: kinds[one["AttributeName"]] for one in ordered}


class DynamoSink:
    """A sink that writes each record as an item, and deletes what an upsert deletes."""

    exactly_once = False
    commits_in_tasks = True

    def __init__(
        self,
        binding: DynamoBinding,
        encoder: Encoder,
        record_type: RecordType,
        upsert_key: Sequence[str] | None = None,
    ) -> None:
        self._rows: Final = record_type if upsert_key is None else row_type(record_type)
        self._upsert_key: Final = upsert_key
        self._target = _Target(binding, encoder, tuple(self._rows.field_names), {}, upsert_key is not None, 0)
        self._checked_s = -math.inf
        own = [name for name in _OWN if name in self._rows.field_names]
        if own:
            raise BindingError(
                f"Sink {binding.stream!r}: the records have the field {own[0]}, which the sink writes itself. Rename "
                "it in the job."
            )

    def newest(self, lineage: str, checkpoint_folder: str) -> int:  # noqa: ARG002  # a start begins anew
        """Return -1: rows that are there may be written again."""
        return -1

    def prepare(self, lineage: str, checkpoint_folder: str) -> None:  # noqa: ARG002  # marks have it
        """Check the table and its key, and number this run: later than those of the checkpoint, and than the clock."""
        binding = self._target.binding
        key = check_table(binding)
        self._checked_s = time.monotonic()
        self._check_key(key)
        number = Path(checkpoint_folder) / f"dynamo-sink-{binding.stream}.run"
        with noting_errors(binding.stream):
            before = int(number.read_text()) if number.exists() else 0
            run = max(before + 1, time.time_ns() // 1_000_000)
            write_atomically(number, str(run).encode())
        target = self._target
        self._target = _Target(binding, target.encoder, target.names, key, target.takes_changes, run)

    def _check_key(self, key: Mapping[str, str]) -> None:
        binding = self._target.binding
        for name, kind in key.items():
            known = name in self._rows.field_names
            found = key_kind(self._rows.field(name).arrow_type) if known else None
            if found != kind:
                what = f"which is {self._rows.field(name).arrow_type}" if known else "which the records lack"
                raise BindingError(
                    f"Sink {binding.stream!r}: the key of {binding.where} has {name} (of type {kind}), {what}. Give "
                    f"the records such a field; they have {', '.join(self._rows.field_names)}."
                )
        if self._upsert_key is not None and set(self._upsert_key) != set(key):
            raise BindingError(
                f"Sink {binding.stream!r} takes upserts, and their key is ({', '.join(self._upsert_key)}). The key of "
                f"{binding.where} must be the same; it is ({', '.join(key)})."
            )

    def task(self, context: TaskContext, record_type: RecordType) -> SinkTask:  # noqa: ARG002  # it is known
        """Return a task whose items the server has when they are written."""
        return _ItemTask(self._target, context)

    def commit(self, batch_id: int, messages: Sequence[bytes]) -> None:  # noqa: ARG002  # the items are written
        """Check now and then that the table has its key, since with another one writes may succeed, too."""
        if not messages or time.monotonic() < self._checked_s + _KEY_CHECKED_EVERY_S:
            return
        self._checked_s = time.monotonic()
        try:
            key = check_table(self._target.binding)
        except ExternalSystemError:
            # The server has the items, and may be away by now.
            return
        self._target.require_key(key)


_pools: Final[dict[tuple[int, int], ThreadPoolExecutor]] = {}


def _pool(threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), threads
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="dynamodb")
    return _pools[key]


class _ItemTask(RejectingTask):
    """A task that writes the last record of each key of a block, and waits until the server has them."""

    def __init__(self, target: _Target, context: TaskContext) -> None:
        super().__init__()
        self._target: Final = target
        self._binding: Final = target.binding
        self._context: Final = context
        self._client: Final = get_client(target.binding)
        self._sink: Final = target.sink(context.lineage)
        self._requests = 0
        self._checked_s = -math.inf

    def write(self, batch: pa.RecordBatch, keys: pa.Array | None) -> None:  # noqa: ARG002  # the table has them
        refused: dict[int, str] = {}
        requests = self._requests_of(batch, refused)
        if requests:
            self._send(requests, refused)
            if (
                any(row in refused for row in requests)
                and time.monotonic() > self._checked_s + _CHECKED_EVERY_S
            ):
                self._require_same_key()
        self._reject(refused, bodies_of(batch.select(self._target.names), self._target.encoder), _MAX_BYTES)

    def finish(self) -> bytes:
        return b""

    def abort(self) -> None:
        """Do nothing: written rows stay until they are written again."""

    def _requests_of(self, batch: pa.RecordBatch, refused: dict[int, str]) -> dict[int, _Request]:
        """Return what to write, by row; each knows the record of its key before it. Leave out what can be no item."""
        names, target = self._target.names, self._target
        gone = (change_codes(batch) == DELETE).tolist() if target.takes_changes else [False] * len(batch)
        columns = [attributes(batch.column(name)) for name in names]
        may_be_large = batch.nbytes > _MAX_BYTES
        last: dict[tuple[str, ...], int] = {}
        found: dict[int, _Request] = {}
        for row, values in enumerate(zip(*columns, strict=True)):
            item = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            missing = next((name for name in target.key if name not in item), None)
            if missing is not None:
                refused[row] = f"The field {missing} of its key is null."
                continue
            key = {name: item[name] for name in target.key}
            # Of a request that is much larger the server does not say what is wrong with it.
            if may_be_large and (size := item_bytes(key if gone[row] else item)) > _MAX_BYTES:
                refused[row] = f"It has at least {size} bytes, and an item may have {_MAX_BYTES}."
                continue
            place = tuple(str(value) for value in key.values())
            found[row] = _Request(key, None if gone[row] else item, last.get(place))
            last[place] = row
        return found

    def _send(self, requests: Mapping[int, _Request], refused: dict[int, str]) -> None:
        """Write the last record of each key, or the one before it where that is refused, until the server has all.

        What is sent again has a later mark, so the first cannot undo it.
        """
        replaced = {request.before for request in requests.values()}
        waiting = {row: request for row, request in requests.items() if row not in replaced}
        patience = Patience(_PATIENCE_S)
        pool = _pool(self._binding.requests_at_once)
        while waiting:
            self._requests += 1
            attempt = _Attempt(self._mark())
            answers = list(pool.map(lambda one, tried=attempt: self._put(one, tried), waiting.values()))
            again: dict[int, _Request] = {}
            reason = ""
            for (row, request), answer in zip(waiting.items(), answers, strict=True):
                if answer.is_refused:
                    refused[row] = f"{self._binding.where} refuses its item: {answer.reason}"
                    if request.before is not None:
                        again[request.before] = requests[request.before]
                elif not answer.is_done:
                    again[row], reason = request, answer.reason or reason
            has_progressed = any(answer.is_done or answer.is_refused for answer in answers)
            if reason and not patience.rest(has_progressed=has_progressed):
                raise ExternalSystemError(
                    f"Sink {self._binding.stream!r}: {self._binding.where} takes no items ({reason}), for "
                    f"{_PATIENCE_S:g} s. They are written again when the job starts again."
                )
            waiting = again

    def _require_same_key(self) -> None:
        """Raise unless the table has the key that it had at the start, so that a record is to blame for a refusal."""
        key = check_table(self._binding)
        self._checked_s = time.monotonic()
        self._target.require_key(key)

    def _mark(self) -> str:
        context, run = self._context, self._target.run
        return f"{self._sink}{run:016d}/{context.batch_id:012d}/{context.attempt:020d}/{self._requests:08d}"

    def _put(self, request: _Request, attempt: _Attempt) -> _Answer:
        """Write or delete an item. Runs in a thread of its own. Raises ExternalSystemError if a later run writes."""
        import botocore.exceptions

        if attempt.is_away.is_set():
            return _Answer()
        try:
            self._ask(request, attempt.mark)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as e:
            reason = " ".join(str(e).split())
            if error_code(e) == "ConditionalCheckFailedException":
                raise ExternalSystemError(
                    f"Sink {self._binding.stream!r}: a later run of the job, or a later attempt, writes to "
                    f"{self._binding.where} by now. This one writes nothing more."
                ) from e
            if error_code(e) in ("ValidationException", "ItemCollectionSizeLimitExceededException"):
                return _Answer(reason, is_refused=True)
            if is_throttling(e) or error_code(e) in _CONFLICTS:
                return _Answer(reason)
            if is_server_away(e):
                attempt.is_away.set()
                return _Answer(reason)
            with as_external(self._binding):
                raise
        return _Answer(is_done=True)

    def _ask(self, request: _Request, mark: str) -> None:
        condition = {
            "TableName": self._binding.table,
            "ConditionExpression": _CONDITION,
            "ExpressionAttributeNames": {"#m": MARK},
            "ExpressionAttributeValues": {":m": {"S": mark}, ":s": {"S": self._sink}},
        }
        if request.item is not None:
            self._client.put_item(Item={**request.item, MARK: {"S": mark}}, **condition)
        elif self._binding.deletions == "remove":
            self._client.delete_item(Key=request.key, **condition)
        else:
            expires = {"N": str(int(time.time()) + _KEPT_S)}
            item = {**request.key, MARK: {"S": mark}, DELETED: {"BOOL": True}, EXPIRES: expires}
            self._client.put_item(Item=item, **condition)


@dataclass(frozen=True)
class _Request:
    """An item to be written, or with None to be deleted; `before` is the row of the record that it replaces."""

    key: Mapping[str, Attribute]
    item: Mapping[str, Attribute] | None
    before: int | None = None


@dataclass(frozen=True)
class _Attempt:
    """An attempt to write items: its mark, and whether the server is away, so that no more requests wait for it."""

    mark: str
    is_away: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class _Answer:
    """The outcome of a request: whether it was done, or never will be, and why; empty if it was not sent."""

    reason: str = ""
    is_done: bool = False
    is_refused: bool = False
