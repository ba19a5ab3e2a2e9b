"""Which records go into a request, against a stream that refuses some at random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.kinesis.kinesis_sink import with_origin
from penstock.kinesis.put_queue import Outgoing, PutQueue


@given(
    keys=st.lists(st.sampled_from("abcde"), max_size=60),
    refusals=st.lists(st.booleans(), max_size=80),
    most=st.integers(1, 8),
    most_bytes=st.integers(1, 40),
    keeps_order=st.booleans(),
)
def test_each_record_is_taken_once_and_those_of_a_key_in_order(
    keys: list[str], refusals: list[bool], most: int, most_bytes: int, keeps_order: bool
) -> None:
    records = [Outgoing(row, key, b"x" * (row % 9)) for row, key in enumerate(keys)]
    queue = PutQueue(records, keeps_order=keeps_order, most=most, most_bytes=most_bytes)
    chances = iter(refusals)
    there: list[Outgoing] = []
    while queue:
        taken = queue.take()
        assert 1 <= len(taken) <= most
        assert len(taken) == 1 or sum(one.size for one in taken) <= most_bytes
        if keeps_order:
            assert len({one.key for one in taken}) == len(taken)
        failed = {one.row for one in taken if next(chances, False)}
        there += [one for one in taken if one.row not in failed]
        queue.settle(taken, failed)
    assert sorted(there) == records
    if keeps_order:
        for key in "abcde":
            of_key = [one.row for one in there if one.key == key]
            assert of_key == sorted(of_key)


def test_an_empty_object_gets_an_origin_too() -> None:
    assert with_origin(b"{}", b'a"b') == b'{"penstock_origin":"a\\"b"}'
