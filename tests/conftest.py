"""What tests share: how many examples property tests try, a real Kafka broker, and a Spark session."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from kept_rewrites import bytecode_kept, rewrite_share
from property_examples import register_profiles

from penstock.machine.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

register_profiles()

# Of Spark's log in the session; a test fills it.
_LOG_BYTES = 1 << 18


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests, with what an earlier session or another process has made of them."""
    with bytecode_kept():
        rewrite_share(session.config)
        return (yield)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A real Apache Kafka broker, started once for the whole session; it has a user for clients that log in."""
    with KafkaBroker(users={"ann": "ann-secret"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session with two cores, for the whole session of tests; runs in it find it warm."""
    # Most tests do without PySpark, which takes a second to load.
    from penstock.spark.session import SessionSettings, open_session
    from penstock.spark.startup.warm_up import warm_up

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with (
        open_session(SessionSettings("tests", "local[2]", 2, log_file=log, log_bytes=_LOG_BYTES)) as session,
        # A run that does not start Spark itself has nothing to gain by it, but each would do it again.
        mock.patch("penstock.jobs.runner.warm_up"),
        # Many runs are short, and their end is seen at the next look.
        mock.patch("penstock.jobs.query_run._POLL_S", 0.05),
    ):
        warm_up(session)
        yield session
