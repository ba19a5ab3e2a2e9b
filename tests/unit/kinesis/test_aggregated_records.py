"""Records that Amazon's producer library has packed into one."""

from __future__ import annotations

import hashlib

import pytest

from penstock.kinesis.aggregated_records import aggregated_record, hash_of, records_in
from penstock.kinesis.shard_places import Shard

MARK = b"\xf3\x89\x9a\xc2"
WHOLE = Shard("s")
# Two records packed as by the library, written by hand: the keys "a" and "b", and the data "x" and "y".
BY_HAND = b"\x0a\x01a\x0a\x01b" + b"\x1a\x05\x08\x00\x1a\x01x" + b"\x1a\x05\x08\x01\x1a\x01y"


def packed(content: bytes) -> bytes:
    return MARK + content + hashlib.md5(content, usedforsecurity=False).digest()


def test_packed_records_come_one_by_one() -> None:
    assert records_in(packed(BY_HAND), WHOLE) == [b"x", b"y"]


def test_a_record_of_another_shard_is_left_out() -> None:
    """The producer sends it again, to its own shard."""
    of_a = Shard("s", first_hash=hash_of("a"), last_hash=hash_of("a"))
    assert records_in(packed(BY_HAND), of_a) == [b"x"]
    message = aggregated_record().FromString(BY_HAND)
    message.explicit_hash_key_table.append(str(hash_of("a")))
    message.records[1].explicit_hash_key_index = 0
    assert records_in(packed(message.SerializeToString()), of_a) == [b"x", b"y"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        MARK,
        MARK + b"plain bytes with the mark by chance",
        packed(b"\xff"),
        packed(b"\x1a\x05\x08\x07\x1a\x01x"),
    ],
)
def test_what_is_not_packed_stays_as_it_is(data: bytes) -> None:
    assert records_in(data, WHOLE) == [data]
