"""Fixtures shared by system tests: a real RabbitMQ, PostgreSQL and S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from rabbitmq_node import RabbitNode
from s3_server import S3Server

_CLOUD = ("AWS_", "AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


# Idle servers use a third of a core together, and most tests need none of them, so they end with the test
# file that started them.
@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """Start a broker for one test file. Restart it after declarations, which a kill may otherwise lose."""
    with RabbitNode(tmp_path_factory.mktemp("rabbitmq")) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a server for the whole session. Each test uses its own schema."""
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Start a server for one test file, in which each test uses its own buckets."""
    with S3Server(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch, s3: S3Server, tmp_path: Path) -> pytest.MonkeyPatch:
    """Give a test only those environment variables that the S3 server needs; the test may change them."""
    for name in list(os.environ):
        if name.upper().startswith(_CLOUD):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return monkeypatch
