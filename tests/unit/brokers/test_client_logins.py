"""Client logins: a Kafka client whose login is refused gets the password that a file has by then."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import KafkaBinding
from penstock.brokers import client_logins
from penstock.brokers.kafka_topics import LastError, build_client

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")


class Client:
    """A client that notes what it is given."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.settings = settings
        self.logins: list[tuple[str, str]] = []

    def set_sasl_credentials(self, user: str, password: str) -> None:
        self.logins.append((user, password))


def test_a_refused_client_gets_what_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each change; no other error is a reason, nor a file that is missing."""
    monkeypatch.setattr(client_logins, "_LOOK_S", 0.0)
    file, errors = tmp_path / "password", LastError()
    file.write_text("one\n")
    client = build_client(
        Client, bind(f"sasl.username=ann&sasl.password=file:{file}"), settings(file), errors
    )
    assert client.settings["sasl.password"] == "one"

    def logins_after(error: KafkaError) -> list[tuple[str, str]]:
        errors(error)
        errors.await_login()
        return client.logins

    assert logins_after(REFUSED) == []
    file.write_text("two\n")
    assert logins_after(KafkaError(KafkaError._TRANSPORT)) == []
    assert logins_after(REFUSED) == logins_after(REFUSED) == [("ann", "two")]
    file.unlink()
    assert logins_after(REFUSED) == [("ann", "two")]
    file.write_text("three")
    assert logins_after(REFUSED) == [("ann", "two"), ("ann", "three")]


def test_a_client_ends_although_its_errors_are_kept(tmp_path: Path) -> None:
    """Its callbacks have them, and must not keep it."""
    file, errors = tmp_path / "password", LastError()
    file.write_text("one\n")
    client = build_client(Client, bind(""), settings(file), errors)
    assert errors.login is not None
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    errors(REFUSED)
    errors.await_login()


def test_a_login_without_files_cannot_change() -> None:
    errors = LastError()
    client = build_client(Client, bind(""), {"sasl.username": "ann", "sasl.password": "one"}, errors)
    errors(REFUSED)
    errors.await_login()
    assert client.logins == []


def bind(query: str) -> KafkaBinding:
    found = parse_binding("readings", f"kafka://h:1/t?{query}", "data")
    assert isinstance(found, KafkaBinding)
    return found


def settings(file: Path) -> dict[str, str]:
    return {"sasl.username": "ann", "sasl.password": f"file:{file}"}
