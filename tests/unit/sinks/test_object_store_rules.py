"""Object sinks refuse stores that cannot be exactly once, and name invalid places."""

from __future__ import annotations

from pathlib import Path

import pytest
from answering_server import answering

from penstock.bindings.parse import parse_binding
from penstock.bindings.types import ObjectsBinding
from penstock.errors import BindingError
from penstock.objects.batch_manifests import committed_objects
from penstock.objects.objects import ObjectError
from penstock.sinks.object_sink import ObjectSink

KEYS = "access_key_id=k&secret_access_key=pw&region=us-east-1"


def sink_at(port: int) -> ObjectSink:
    found = parse_binding("seen", f"s3://b/x?format=csv&endpoint=http://127.0.0.1:{port}&{KEYS}", "sink")
    assert isinstance(found, ObjectsBinding)
    return ObjectSink(found)


def test_a_store_that_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a store reports success for creating an object that existed."""
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    asked: list[bytes] = []
    taken = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
    with (
        answering(lambda it, _: it.sendall(taken), asked) as port,
        pytest.raises(BindingError, match="the store of s3://b/x overwrites objects"),
    ):
        sink_at(port).prepare("line", str(tmp_path))
    assert len(asked) == 2
    assert all(request.startswith(b"PUT /b/x/_manifests/seen-line/about.json HTTP") for request in asked)
    assert all(b"if-none-match: *" in request.lower() for request in asked)


def test_one_that_refuses_the_second_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 412."""
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    there = b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(lambda it, _: it.sendall(there)) as port:
        sink_at(port).prepare("line", str(tmp_path))


@pytest.mark.parametrize("uri", ["seen", "http://b/x", "s3:///x", "s3://key@b/x"])
def test_only_a_prefix_of_a_bucket_is_listed(uri: str) -> None:
    with pytest.raises(ObjectError, match="is not of the form s3://BUCKET/PREFIX"):
        committed_objects(uri)
