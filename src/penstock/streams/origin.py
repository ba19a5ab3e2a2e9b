"""Origins: where the records of a stream come from, and what of it a function leaves in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import JobDefinitionError
from penstock.operators.event_times import EVENT_TIME
from penstock.operators.watermarks import INGESTION_TIME
from penstock.records.protobuf_types import ProtobufSource
from penstock.records.types import RecordType

__all__ = ["Origin", "is_time", "protobuf_source"]


@dataclass(frozen=True)
class Origin:
    """Where a stream's records come from: the name of the stream or step, and whether they steer.

    `time` is the field with the event time of data, or with the time from which a control record is effective;
    `version` the field with the version of a control record. In place of a field of data `INGESTION_TIME` says that it
    counts when it arrives, and `EVENT_TIME` that its time travels beside the records.
    """

    name: str
    is_control: bool
    protobuf: ProtobufSource | None
    time: str | None = None
    version: str | None = None

    def of(self, kind: RecordType, protobuf: ProtobufSource | None) -> Origin:
        """The origin of what a function makes of the records: times and versions stay where their fields do.

        Where its field does not stay the event time of data travels on beside the records.
        """
        fields = kind.schema
        version = self.version if self.version in fields.names else None
        time = self.time
        if time is not None and time in fields.names and is_time(fields.field(time).type):
            return Origin(self.name, self.is_control, protobuf, time, version)
        if time not in (None, INGESTION_TIME):
            time = None if self.is_control else EVENT_TIME
        return Origin(self.name, self.is_control, protobuf, time, version)


def is_time(kind: pa.DataType) -> bool:
    """Whether values of a type can be times: timestamps, or milliseconds since 1970."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


def protobuf_source(given: Any, schema: Any, who: str) -> ProtobufSource | None:
    """The protobuf message of a stream's records: the given class, else the schema when that is one."""
    if given is None:
        return ProtobufSource.of(schema) if _is_message(schema) else None
    if not _is_message(given):
        raise JobDefinitionError(
            f"{who}: protobuf={given!r} is no message class. Give a class that the protobuf compiler made."
        )
    return ProtobufSource.of(given)


def _is_message(schema: Any) -> bool:
    return isinstance(schema, type) and hasattr(schema, "DESCRIPTOR") and hasattr(schema, "SerializeToString")
