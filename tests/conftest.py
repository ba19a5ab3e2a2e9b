"""What tests share: how many examples property tests try, a real Kafka broker, and a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from property_examples import register_profiles

from penstock.local.kafka import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

register_profiles()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A real Apache Kafka broker, started once for the whole session."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session with two cores, for the whole session of tests."""
    # Most tests do without PySpark, which takes a second to load.
    from penstock.runtime.session import SessionSettings, open_session

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(SessionSettings("tests", "local[2]", 2, needs_kafka=True, log_file=log)) as session:
        yield session
