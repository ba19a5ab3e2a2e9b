"""What tests share: how many examples property tests try, and a real Kafka broker for those that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from property_examples import register_profiles

from penstock.local.kafka import KafkaBroker

register_profiles()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A real Apache Kafka broker, started once for the whole session."""
    with KafkaBroker() as broker:
        yield broker
