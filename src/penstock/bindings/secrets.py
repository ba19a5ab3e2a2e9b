"""Secrets: references to them in settings, and URIs and texts with passwords masked."""

from __future__ import annotations

import os
import re
import socket
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.bindings.types import Binding, FilesBinding
from penstock.errors import BindingError, ExternalSystemError

__all__ = [
    "check_reference",
    "has_files",
    "public_uri",
    "redact",
    "refused_login",
    "resolve_setting",
    "resolve_settings",
    "without_logins",
    "without_secrets",
]


# In the name of a folder that is not itself a URI, @ has no meaning.
_LOGIN: Final = re.compile(
    r"(?s)^(?!\s*(?:jsonl|csv|parquet|text|console):(?!\s*[A-Za-z][A-Za-z0-9+.-]*:))([^:]*:/*[^:]*:).*@"
)
_URI: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
_SECRET: Final = re.compile(
    r"(?i)([?&][^=&]*(?:password|secret|jaas|token|credential|key\.pem|header\.|query\.)[^=&]*=)(?!env:|file:)[^&]*"
)
_QUOTED_LOGIN: Final = re.compile(r"(['\"][^\s:'\"]*:)[^\s'\"]*@")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def redact(uri: str) -> str:
    """Return the URI with passwords and other secrets masked, for messages and logs.

    >>> redact("kafka://h:9092/t?sasl.password=abc&format=json")
    'kafka://h:9092/t?sasl.password=***&format=json'
    >>> redact("kafka://h:9092/t?sasl.password=env:KAFKA_PASSWORD")
    'kafka://h:9092/t?sasl.password=env:KAFKA_PASSWORD'
    >>> redact("amqp://guest:abc@h:5672/%2F/readings")
    'amqp://guest:***@h:5672/%2F/readings'
    >>> redact("https://h/hook?header.Authorization=abc")
    'https://h/hook?header.Authorization=***'
    """
    # Mask up to the last @, and under any scheme, so that a mistyped URI shows no password either.
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***@", uri))


def without_secrets(text: str) -> str:
    """Return the text with the secrets of its URIs masked, for logs.

    >>> without_secrets("The broker amqp://guest:abc@h:5672/%2F/readings does not answer.")
    'The broker amqp://guest:***@h:5672/%2F/readings does not answer.'
    """
    return _URI.sub(lambda found: redact(found.group()), text)


def without_logins(text: str) -> str:
    """Return the text with whatever stands between a colon and an @ masked in each quoted part of a URI, for messages.

    >>> without_logins("'guest:abc@h:5672' is not of the form HOST:PORT")
    "'guest:***@h:5672' is not of the form HOST:PORT"
    """
    return _QUOTED_LOGIN.sub(r"\1***@", text)


def public_uri(binding: Binding) -> str:
    """Return the URI of a binding with secrets masked, which means the same in another working folder."""
    if isinstance(binding, FilesBinding):
        return f"{binding.format}:{urllib.parse.quote(binding.directory)}"
    return redact(binding.uri)


def check_reference(name: str, value: str) -> None:
    """Raise ValueError when a setting begins like a reference but is not one."""
    kind, _, place = value.partition(":")
    if kind == "env" and not _VARIABLE.fullmatch(place):
        raise ValueError(f"{name}=env:{place} must name an environment variable, such as env:KAFKA_PASSWORD")
    if kind == "file" and not Path(place).is_absolute():
        raise ValueError(f"{name}=file:{place} must have an absolute path, such as file:/run/secrets/kafka")


def has_files(settings: Mapping[str, Any]) -> bool:
    """Return whether a value is that of a file, which may have another content while the process runs.

    >>> has_files({"token": "file:/run/secrets/token"}), has_files({"token": "env:TOKEN"})
    (True, False)
    """
    return any(isinstance(value, str) and value.startswith("file:") for value in settings.values())


def refused_login(settings: Mapping[str, Any]) -> type[BindingError | ExternalSystemError]:
    """Return the class of the error for a login that a server refuses, by the settings that it is of.

    A file may have the right password at the next start, so that it helps to start again. Nothing else changes.

    >>> refused_login({"password": "file:/run/secrets/token"}).__name__, refused_login({"password": "env:P"}).__name__
    ('ExternalSystemError', 'BindingError')
    """
    return ExternalSystemError if has_files(settings) else BindingError


def resolve_settings(stream: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return client settings with the values that they refer to (`env:NAME`, `file:PATH`), as this process has them.

    Call it where a client is made, so that nothing else ever holds the values. Raises BindingError when one is missing.
    """
    return {name: _resolve(stream, name, value) for name, value in settings.items()}


def resolve_setting(stream: str, settings: Mapping[str, Any], name: str) -> Any:
    """Return one setting likewise; None if it is not among them."""
    return _resolve(stream, name, settings.get(name))


def _resolve(stream: str, name: str, value: Any) -> Any:
    kind, _, place = value.partition(":") if isinstance(value, str) else ("", "", "")
    # An empty secret would mean no protection: a token that nobody needs, a login without a password.
    if kind == "env":
        if found := os.environ.get(place):
            return found
        reason = f"the environment variable {place} is empty"
        if place not in os.environ:
            reason = f"there is no environment variable {place}"
    elif kind == "file":
        try:
            # Editors and tools end a file with a line end, which is not part of the password.
            if found := Path(place).read_text().rstrip("\r\n"):
                return found
            reason = "that file is empty"
        except (OSError, UnicodeDecodeError) as e:
            reason = f"that file cannot be read ({getattr(e, 'strerror', None) or e})"
    else:
        return value
    raise BindingError(
        f"Stream {stream!r}: {name}={value}, but {reason} in the process {os.getpid()} on {socket.gethostname()}. "
        "Provide it where the job starts, and on every machine that has workers."
    )
