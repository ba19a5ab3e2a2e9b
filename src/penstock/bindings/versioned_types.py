"""The bindings of stores that keep the value with the greatest version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CassandraBinding", "OpenSearchBinding"]


@dataclass(frozen=True)
class CassandraBinding:
    """A table of Cassandra. `uri` has its password masked; `login` has it, or a reference to it.

    `servers` are the first ones to contact. `datacenter` is the one whose nodes are asked; None is that of the servers.
    Failed writes are tried again for `retry_s`. The certificates are files in PEM.
    """

    stream: str
    uri: str
    servers: tuple[tuple[str, int], ...]
    keyspace: str
    table: str
    consistency: str = "local_quorum"
    datacenter: str | None = None
    ttl_s: int | None = None
    writes_at_once: int = 128
    retry_s: int = 60
    user: str | None = None
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    secure: bool = False
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def address(self) -> str:
        """The servers, in a sentence."""
        return ", ".join(f"{host}:{port}" for host, port in self.servers)

    @property
    def place(self) -> str:
        """The place of the binding, for messages."""
        return f"the table {self.keyspace}.{self.table} of {self.address}"


@dataclass(frozen=True)
class OpenSearchBinding:
    """Documents of OpenSearch or Elasticsearch. `uri` has its password masked; `login` has it, or a reference to it.

    `index` and `id` may have `{field}` in them. Failed writes are tried again for `retry_s`. The certificates
    are files in PEM.
    """

    stream: str
    uri: str
    host: str
    port: int
    index: str
    id: str
    retry_s: int = 60
    user: str | None = None
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    secure: bool = False
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"

    @property
    def place(self) -> str:
        """The place of the binding, for messages."""
        return f"the index {self.index} of {self.url}"
