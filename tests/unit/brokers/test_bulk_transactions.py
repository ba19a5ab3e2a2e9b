"""Bulk transactions: all messages in order, and none outside a transaction.

The mock broker neither fences producers nor keeps offsets: tests/system/test_kafka_batches.py uses a real
one.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from mock_broker import MOCK, TOPIC, bootstrap_of, read

from penstock.brokers.bulk_transactions import BulkTransactions
from penstock.brokers.kafka_topics import LastError, kafka_log

TIMEOUT_S: Final = 20.0
GROUP: Final = "heaters-0"
COUNTS: Final = pytest.mark.parametrize("count", [1, 3, 40, 1500])


def client(**settings: str) -> BulkTransactions:
    """Return a client, with its own mock broker unless one is given."""
    own = {"error_cb": LastError(), "logger": kafka_log, "transactional.id": GROUP, "linger.ms": "0"}
    return BulkTransactions({**own, **settings}, TOPIC)


def column(count: int) -> pa.Array:
    return pa.array([b"%d" % number for number in range(count)])


@COUNTS
def test_messages_are_committed_in_order(count: int) -> None:
    """Few or many messages are sent, in successive transactions."""
    ours = client(**MOCK)
    ours.list_topics(TOPIC, TIMEOUT_S)
    ours.init_transactions(TIMEOUT_S)
    for offset, note in ((1, "first"), (2, ""), (3, "3 \N{SNOWMAN}")):
        ours.begin_transaction()
        assert ours.produce(column(count), pa.array([b"key"] * count)) == count
        assert ours.produce(column(0), None) == 0
        ours.send_offset(GROUP, offset, note, TIMEOUT_S)
        ours.commit_transaction(TIMEOUT_S)
    (found,) = filter(None, read(bootstrap_of(ours), 3 * count))
    assert [value for _, value in found] == column(count).to_pylist() * 3


@COUNTS
def test_messages_outside_a_transaction_are_refused(count: int) -> None:
    """This goes for messages before one begins and after one has failed: a full queue is then not waited for."""
    ours = client(**MOCK)
    ours.init_transactions(TIMEOUT_S)
    with pytest.raises(KafkaException) as caught:
        ours.produce(column(count), None)
    assert caught.value.args[0].code() == KafkaError._STATE
    ours.begin_transaction()
    assert ours.produce(column(count), None) == count
    ours.abort_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException):
        ours.produce(column(count), None)


def test_a_transaction_whose_messages_are_lost_takes_no_more() -> None:
    """It is not committed either."""
    ours = client(**MOCK, **{"message.timeout.ms": "50", "test.mock.broker.rtt": "200"})
    ours.init_transactions(TIMEOUT_S)
    ours.begin_transaction()
    ours.produce(column(40), None)
    assert ours.flush(TIMEOUT_S) == 0
    with pytest.raises(KafkaException) as caught:
        ours.produce(column(40), None)
    assert caught.value.args[0].code() == KafkaError._STATE
    with pytest.raises(KafkaException):
        ours.commit_transaction(TIMEOUT_S)


def test_a_broker_that_does_not_answer_is_an_error() -> None:
    """The error comes within the timeout."""
    ours = client(**{"bootstrap.servers": "127.0.0.1:9"})
    with pytest.raises(KafkaException):
        ours.list_topics(TOPIC, 0.2)
    with pytest.raises(KafkaException):
        ours.init_transactions(0.2)
