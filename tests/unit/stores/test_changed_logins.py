"""Logins of stores that change while a process keeps its client: the next connection or request has the new one."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import psycopg
import pytest
from hook_server import HookServer, Reply

from penstock.bindings.amazon_types import AmazonPlace, KinesisBinding
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import PostgresBinding
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.databases.postgres_connections import open_connection
from penstock.errors import BindingError, ExternalSystemError, PenstockError
from penstock.kinesis.kinesis_stream import KinesisStream
from penstock.stores.cassandra_clients import login_of
from penstock.stores.opensearch_clients import get_client, refuse


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("old\n")
    return file


def test_requests_to_opensearch_have_the_password_of_the_file(secret: Path) -> None:
    with HookServer() as server:
        login = {"password": f"file:{secret}"}
        uri = "opensearch://me@127.0.0.1/i"
        binding = OpenSearchBinding("s", uri, "127.0.0.1", server.port, "i", "{n}", user="me", login=login)
        for password in ("old", "new"):
            secret.write_text(password)
            get_client(binding).post("/_bulk", content=b"{}")
            expected = base64.b64encode(f"me:{password}".encode()).decode()
            assert server.asked[-1].headers["Authorization"] == f"Basic {expected}"
        server.reply = lambda _: Reply(401)
        with pytest.raises(ExternalSystemError, match="refuses the login"):
            refuse(binding, get_client(binding).post("/_bulk", content=b"{}"))
        fixed = dataclasses.replace(binding, login={"password": "old"})
        with pytest.raises(BindingError, match="refuses the login"):
            refuse(fixed, get_client(fixed).post("/_bulk", content=b"{}"))


def test_requests_to_amazon_have_the_key_of_the_file(secret: Path) -> None:
    """Also those of a stream that is read on."""
    summary = {"StreamStatus": "ACTIVE", "RetentionPeriodHours": 24, "StreamCreationTimestamp": 1}
    answer = json.dumps({"StreamDescriptionSummary": summary, "Shards": []})
    with HookServer(lambda _: Reply(text=answer)) as server:
        login = {"access_key_id": f"file:{secret}", "secret_access_key": f"file:{secret}"}
        place = AmazonPlace("eu-central-1", server.url.removesuffix("/hook"), login)
        stream = KinesisStream(KinesisBinding("s", "kinesis://n", "n", place))
        for key in ("old", "new"):
            secret.write_text(key)
            stream.put(b"", "k")
            assert f"Credential={key}/" in server.asked[-1].headers["Authorization"]
        server.reply = lambda _: Reply(400, text='{"__type": "ExpiredTokenException", "message": "old"}')
        with pytest.raises(ExternalSystemError, match="refuses the login"):
            stream.put(b"", "k")


def test_connections_to_cassandra_have_the_password_of_the_file(secret: Path) -> None:
    """One that is missing is told at once."""
    binding = CassandraBinding(
        "s", "cassandra://h/k/t", (("h", 1),), "k", "t", user="me", login={"password": f"file:{secret}"}
    )
    login = login_of(binding)
    for password in ("old", "new"):
        secret.write_text(password)
        assert login.new_authenticator("h").password == password
    secret.unlink()
    with pytest.raises(BindingError, match="that file cannot be read"):
        login_of(binding)


@pytest.mark.parametrize(
    ("password", "error"), [("file:{secret}", ExternalSystemError), ("fixed", BindingError)]
)
def test_a_login_to_postgresql_may_be_right_at_the_next_start(
    secret: Path, monkeypatch: pytest.MonkeyPatch, password: str, error: type[PenstockError]
) -> None:
    """A server of jobs starts a job again after an external error, and not after one of the user."""

    def connect(**_: object) -> None:
        raise psycopg.OperationalError('FATAL: password authentication failed for user "me"')

    monkeypatch.setattr(psycopg, "connect", connect)
    uri = f"postgresql://me@h:1/d/t?password={password.format(secret=secret)}"
    binding = parse_binding("s", uri, "sink")
    assert isinstance(binding, PostgresBinding)
    with pytest.raises(error, match="refuses the login"):
        open_connection(binding, "penstock")
