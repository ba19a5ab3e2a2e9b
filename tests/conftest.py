"""What tests share: how many examples property tests try, and a real Kafka broker for those that need one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from property_examples import register_profiles

from penstock.local.kafka import KafkaBroker

register_profiles()

# To rewrite the assertions of all test modules takes each worker seven seconds. The result is kept, though an
# environment may let Python keep no bytecode; what tests write and import is not.
_KEEPS_NONE = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """All test modules are imported."""
    sys.dont_write_bytecode = _KEEPS_NONE


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A real Apache Kafka broker, started once for the whole session."""
    with KafkaBroker() as broker:
        yield broker
