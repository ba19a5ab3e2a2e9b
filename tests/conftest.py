"""What tests share: how many examples property tests try, the import path, a real Kafka broker, and a Spark session."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from kept_rewrites import bytecode_kept, rewrite_share
from property_examples import register_profiles
from secured_broker import SecuredBroker
from shared_broker import BrokerOfSession, broker_at
from xdist.scheduler import LoadFileScheduling

from penstock.runtime import level

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

register_profiles()

# Of Spark's log in the session; a test fills it.
_LOG_BYTES = 1 << 18

# Files that need the same server run in one process, one after the other, so that it starts once.
_SERVERS = {
    "tests/system/test_postgresql.py": "postgres",
    "tests/system/test_two_managers.py": "postgres",
}

_BROKER = pytest.StashKey[BrokerOfSession]()

# Tests have micro-batches of few records, of which some are to be processed key group by key group, as large ones are.
_MERGED_RECORDS = 3


# Files that share a session of Spark run in three processes, since each more starts a session of its own.
_SHARING_SPARK = "tests/integration/"
_SECOND_HALF = f"{_SHARING_SPARK}test_j"
_SOME_SHARE_SPARK = "tests/system/"


@cache
def _names_a_session(file: str) -> bool:
    return "SparkSession" in (Path(__file__).parents[1] / file).read_text()


class _FilesByServer(LoadFileScheduling):
    """Hands out tests file by file, and files of one server together."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file.startswith(_SHARING_SPARK):
            return f"{_SHARING_SPARK}{1 + (file >= _SECOND_HALF)}"
        if file.startswith(_SOME_SHARE_SPARK) and _names_a_session(file):
            return _SOME_SHARE_SPARK
        return _SERVERS.get(file, file)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Keep files of one server together, where files are handed out whole."""
    return _FilesByServer(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each process that runs tests where it finds the session's Kafka broker."""
    stash = node.config.stash
    if _BROKER not in stash:
        stash[_BROKER] = BrokerOfSession()
    node.workerinput["broker"] = stash[_BROKER].address


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the session's Kafka broker."""
    if _BROKER in config.stash:
        config.stash[_BROKER].close()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests, with what an earlier session or another process has made of them.

    What collection makes stays for the session, so that looking for garbage in it, then or later, finds nothing.
    """
    gc.disable()
    with bytecode_kept():
        rewrite_share(session.config)
        collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.fixture(scope="session", autouse=True)
def _small_micro_batches_are_smaller() -> Iterator[None]:
    with mock.patch.object(level, "MAX_MERGED_RECORDS", _MERGED_RECORDS):
        yield


@pytest.fixture(autouse=True)
def _import_path_as_before() -> Iterator[None]:
    """Folders of job files leave the import path after a test; what is in them would hide modules of other tests."""
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[SecuredBroker]:
    """A real Apache Kafka broker, started once for the whole session; it has a user for clients that log in.

    Tests take topics of their own.
    """
    with broker_at(getattr(request.config, "workerinput", {}).get("broker")) as broker:
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
