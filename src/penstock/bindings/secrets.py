"""Secrets: URIs and texts with passwords masked."""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from penstock.bindings.types import Binding, FilesBinding

__all__ = ["public_uri", "redacted", "without_secrets"]


# In the name of a folder that is not itself a URI, @ has no meaning.
_LOGIN: Final = re.compile(
    r"(?s)^(?!\s*(?:jsonl|csv|parquet|text|console):(?!\s*[A-Za-z][A-Za-z0-9+.-]*:))([^:]*:/*[^:]*:).*@"
)
_URI: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
_SECRET: Final = re.compile(r"(?i)([?&][^=&]*(?:password|secret|jaas|token|credential|key\.pem)[^=&]*=)[^&]*")


def redacted(uri: str) -> str:
    """Return the URI with passwords and other secrets masked, for messages and logs.

    >>> redacted("kafka://h:9092/t?sasl.password=abc&format=json")
    'kafka://h:9092/t?sasl.password=***&format=json'
    >>> redacted("amqp://guest:abc@h:5672/%2F/readings")
    'amqp://guest:***@h:5672/%2F/readings'
    """
    # Mask up to the last @, and under any scheme, so that a mistyped URI shows no password either.
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***@", uri))


def without_secrets(text: str) -> str:
    """Return the text with the secrets of its URIs masked, for logs.

    >>> without_secrets("The broker amqp://guest:abc@h:5672/%2F/readings does not answer.")
    'The broker amqp://guest:***@h:5672/%2F/readings does not answer.'
    """
    return _URI.sub(lambda found: redacted(found.group()), text)


def public_uri(binding: Binding) -> str:
    """Return the URI of a binding with secrets masked, which means the same in another working folder."""
    if isinstance(binding, FilesBinding):
        return f"{binding.format}:{urllib.parse.quote(binding.directory)}"
    return redacted(binding.uri)
