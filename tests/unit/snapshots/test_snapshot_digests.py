"""Digests know rows, and nothing of their order, batches and format."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_tables import batches, plain

from penstock.snapshots.digests import Digest, row_hashes
from penstock.snapshots.table_formats import FORMATS, decode, encode


@given(batches(most=8), st.randoms(use_true_random=False), st.sampled_from(FORMATS))
def test_a_digest_is_that_of_the_rows(batch: pa.RecordBatch, chance: random.Random, file_format: str) -> None:
    """In any order, cut anywhere, through any format; and equal rows, no others, have equal hashes."""
    digest = Digest.of([batch])
    order = list(range(len(batch)))
    chance.shuffle(order)
    shuffled = batch.take(pa.array(order, pa.int64()))
    cut = chance.randint(0, len(batch))
    assert Digest.of([shuffled.slice(cut), shuffled.slice(0, cut)]) == digest
    assert Digest.of([batch.slice(cut)]) + Digest.of([batch.slice(0, cut)]) == digest
    assert Digest.of(decode(encode([batch], batch.schema, file_format), batch.schema, file_format)) == digest
    texts = plain(batch)
    for lane in row_hashes(batch):
        assert len(set(lane.tolist())) == len(set(texts))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0.0], [-0.0]),
        ([""], [None]),
        ([[]], [None]),
        ([[1, 2]], [[2, 1]]),
        ([[[1], [2]]], [[[1, 2], []]]),
        ([{"a": None}], [None]),
        ([0], [None]),
        ([{"a": 1, "b": 2}], [{"a": 2, "b": 1}]),
    ],
)
def test_values_that_look_alike_differ(one: list[object], other: list[object]) -> None:
    """Signs of zero, empty and null, order and nesting."""
    kind = pa.array(one).type
    digests = {Digest.of([pa.record_batch({"x": pa.array(v, kind)})]).hex() for v in (one, other)}
    assert len(digests) == 2


def test_the_hash_never_changes() -> None:
    """It stands in manifests."""
    batch = pa.record_batch(
        {
            "key": ["a", None, "ü"],
            "value": [{"x": 1.5, "y": [1, None]}, None, {"x": float("nan"), "y": []}],
            "on": [True, False, None],
        }
    )
    assert Digest.of([batch]).hex() == "0000000000000003503b1c831c4ea1ebe6a041d0b675fd14"


def test_the_digest_of_nothing_is_zero() -> None:
    """So that parts without rows count for nothing."""
    assert Digest().hex() == "0" * 48
    assert Digest.of([pa.record_batch({"x": pa.array([], pa.string())})]) == Digest()
