"""Aggregated records: the records that Amazon's producer library (KPL) has packed into one of Kinesis.

Such a record begins with a mark, and ends with the MD5 of the protobuf message between them. The message has tables of
partition keys and explicit hash keys, and the records, which refer to them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from penstock.kinesis.shard_places import Shard

__all__ = ["hash_of", "records_in"]

_MARK: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_FIELD: Final = descriptor_pb2.FieldDescriptorProto


def hash_of(partition_key: str) -> int:
    """Return the hash that decides to which shard a partition key belongs.

    >>> hash_of("a") == 0x0CC175B9C0F1B6A831C399E269772661
    True
    """
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def records_in(data: bytes, shard: Shard) -> list[bytes]:
    """Return the records that a record of a shard has: itself, or those that were packed into it.

    When shards were split or merged meanwhile, packed records may be in a shard that is not theirs. The producer sends
    such records again, so they are left out here, as Amazon's own consumer library does.
    """
    if not data.startswith(_MARK):
        return [data]
    content, digest = data[len(_MARK) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.md5(content, usedforsecurity=False).digest() != digest:
        return [data]
    try:
        found = aggregated_record().FromString(content)
        return list(_of_shard(found, shard))
    except (message.DecodeError, IndexError, ValueError):
        return [data]


def _of_shard(found: Any, shard: Shard) -> Iterator[bytes]:
    for record in found.records:
        if record.HasField("explicit_hash_key_index"):
            place = int(found.explicit_hash_key_table[record.explicit_hash_key_index])
        else:
            place = hash_of(found.partition_key_table[record.partition_key_index])
        if shard.first_hash <= place <= shard.last_hash:
            yield record.data


@functools.cache
def aggregated_record() -> Any:
    """Return the class of the message that has the packed records."""
    file = descriptor_pb2.FileDescriptorProto(name="penstock/kpl.proto", package="penstock.kpl")
    record = file.message_type.add(name="Record")
    for number, name, kind, label in (
        (1, "partition_key_index", _FIELD.TYPE_UINT64, _FIELD.LABEL_REQUIRED),
        (2, "explicit_hash_key_index", _FIELD.TYPE_UINT64, _FIELD.LABEL_OPTIONAL),
        (3, "data", _FIELD.TYPE_BYTES, _FIELD.LABEL_REQUIRED),
    ):
        record.field.add(name=name, number=number, type=kind, label=label)
    packed = file.message_type.add(name="AggregatedRecord")
    packed.field.add(
        name="partition_key_table", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_REPEATED
    )
    packed.field.add(
        name="explicit_hash_key_table", number=2, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_REPEATED
    )
    packed.field.add(
        name="records",
        number=3,
        type=_FIELD.TYPE_MESSAGE,
        type_name=".penstock.kpl.Record",
        label=_FIELD.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("penstock.kpl.AggregatedRecord"))
