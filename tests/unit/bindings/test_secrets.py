"""References to secrets are resolved only where clients are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from penstock.bindings.parse import parse_binding
from penstock.bindings.secrets import redact, resolve_setting, resolve_settings
from penstock.bindings.types import KafkaBinding
from penstock.brokers.kafka_topics import LastError, build_client
from penstock.errors import BindingError


def bind(query: str) -> KafkaBinding:
    binding = parse_binding("readings", f"kafka://h:1/t?{query}", "data")
    assert isinstance(binding, KafkaBinding)
    return binding


def test_values_come_from_the_environment_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binding, which is sent and displayed, has only the reference."""
    (tmp_path / "key").write_text("file secret\n")
    monkeypatch.setenv("KAFKA_PASSWORD", "env secret")
    binding = bind(
        f"sasl.password=env:KAFKA_PASSWORD&ssl.key.password=file:{tmp_path}/key&ssl.ca.location=/ca.pem"
    )
    assert resolve_settings("readings", {**binding.client, "number": 3}) == {
        "sasl.password": "env secret",
        "ssl.key.password": "file secret",
        "ssl.ca.location": "/ca.pem",
        "number": 3,
    }
    assert "secret" not in repr(binding)
    assert redact(binding.uri) == binding.uri
    assert redact("kafka://h:1/t?sasl.password=plain&acks=1") == "kafka://h:1/t?sasl.password=***&acks=1"
    assert resolve_setting("readings", binding.client, "linger.ms") is None


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (
            "sasl.password=env:NOT_THERE",
            "sasl.password=env:NOT_THERE, but there is no environment variable NOT_THERE",
        ),
        ("sasl.password=file:/not/there", "that file cannot be read .No such file or directory"),
        ("sasl.password=file:/", "that file cannot be read .Is a directory"),
        ("sasl.password=file:/dev/null", "that file is empty"),
        ("sasl.password=env:EMPTY_PASSWORD", "the environment variable EMPTY_PASSWORD is empty"),
    ],
)
def test_what_is_not_there_is_named(setting: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the process that looked for it, which may be a worker on another machine."""
    monkeypatch.setenv("EMPTY_PASSWORD", "")
    with pytest.raises(BindingError, match=f"{reason}.* in the process {os.getpid()} on .*on every machine"):
        build_client(AdminClient, bind(setting), bind(setting).client, LastError())


def test_an_error_of_the_client_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the reference."""
    monkeypatch.setenv("WRONG", "very-secret")
    binding = bind("security.protocol=env:WRONG")
    with pytest.raises(BindingError, match="env:WRONG") as caught:
        build_client(AdminClient, binding, binding.client, LastError())
    assert "very-secret" not in str(caught.value)
