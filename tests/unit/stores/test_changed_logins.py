"""Logins of stores that change while a process keeps its client: the next connection or request has the new one."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hook_server import HookServer, Reply

from penstock.bindings.amazon_types import AmazonPlace, KinesisBinding
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.errors import BindingError
from penstock.kinesis.kinesis_stream import KinesisStream
from penstock.stores.cassandra_clients import login_of
from penstock.stores.opensearch_clients import get_client


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
