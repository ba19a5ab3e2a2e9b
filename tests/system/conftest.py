"""What system tests share: a real RabbitMQ, PostgreSQL and S3 server for those that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from rabbitmq_node import RabbitNode
from s3_server import S3Server

_CLOUD = ("AWS_", "AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


# Idle servers take a third of a core together, and most tests need none of them: they end with the file that does.
@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A broker for a file of tests. Restart it behind what was declared, which a kill may lose otherwise."""
    with RabbitNode(tmp_path_factory.mktemp("rabbitmq")) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for the whole session. Tests take schemas of their own."""
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for a file of tests, which take buckets of their own."""
    with S3Server(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch, s3: S3Server, tmp_path: Path) -> pytest.MonkeyPatch:
    """The environment of a test, which has only what the S3 server needs; the test may change it."""
    for name in list(os.environ):
        if name.upper().startswith(_CLOUD):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return monkeypatch
