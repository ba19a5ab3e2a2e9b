"""URIs of Cassandra and OpenSearch."""

from __future__ import annotations

import pytest

from penstock.bindings.parse import parse_binding
from penstock.bindings.versioned_types import CassandraBinding, OpenSearchBinding
from penstock.errors import BindingError


def test_a_table_of_cassandra() -> None:
    """The URI may have several servers, a login, TLS and settings."""
    uri = "cassandra://me@a:9042,b:9043/plant/latest?password=env:PW&consistency=one&datacenter=x&ttl_s=5&cafile=/ca"
    found = parse_binding("latest", uri, "sink")
    assert isinstance(found, CassandraBinding)
    assert found.servers == (("a", 9042), ("b", 9043))
    assert (found.keyspace, found.table, found.user, found.login) == (
        "plant",
        "latest",
        "me",
        {"password": "env:PW"},
    )
    assert (found.consistency, found.datacenter, found.ttl_s, found.secure, found.cafile) == (
        "one",
        "x",
        5,
        True,
        "/ca",
    )
    assert found.place == "the table plant.latest of a:9042, b:9043"


@pytest.mark.parametrize("scheme", ["opensearch", "elasticsearch"])
def test_documents_of_opensearch(scheme: str) -> None:
    """Only the login has the password."""
    found = parse_binding(
        "latest", f"{scheme}://me:s%20x@h:9200/r-{{room}}?id={{sensor}}&tls=true&retry_s=3", "sink"
    )
    assert isinstance(found, OpenSearchBinding)
    assert (found.index, found.id, found.login, found.retry_s) == (
        "r-{room}",
        "{sensor}",
        {"password": "s x"},
        3,
    )
    assert found.url == "https://h:9200"
    assert "s%20x" not in found.uri + repr(found)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("cassandra://h:9042/plant", "it needs /KEYSPACE/TABLE"),
        ("cassandra://h:9042/plant/a-b", "it needs /KEYSPACE/TABLE"),
        ("cassandra://h/plant/t", "not of the form HOST:PORT"),
        ("cassandra://h:1/plant/t?consistency=any", "consistency"),
        ("cassandra://h:1/plant/t?ttl_s=630720001", "ttl_s=630720001 must be at most 630720000, 20 years"),
        ("cassandra://me@h:1/plant/t", "a login needs a user before the host, and a password"),
        ("cassandra://me:x@h:1/plant/t?password=y", "the password is given twice"),
        ("opensearch://h:9200/", "it needs /INDEX"),
        ("opensearch://h:9200/a", "it needs id=TEMPLATE"),
        ("opensearch://h:9200/a?id={", "must have the name of a field"),
        ("opensearch://h:9200/a?id=1&cafile=ca.pem", "must be an absolute path"),
        ("opensearch://h:9200/a?id=1&cafile=/ca.pem&tls=false", "cafile has no meaning with tls=false"),
    ],
)
def test_wrong_uris_say_what_is_wrong(uri: str, why: str) -> None:
    """In a sentence."""
    with pytest.raises(BindingError, match=r"cannot be bound to") as raised:
        parse_binding("latest", uri, "sink")
    assert why in str(raised.value)
