"""The binding of Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["RedisBinding"]


@dataclass(frozen=True)
class RedisBinding:
    """Keys of a database of a Redis server. `uri` has its password masked; `login` has it, or a reference to it.

    `{field}` in the key is the value of a field. Values are hashes, or with `json` strings, and expire after `ttl_s`.
    The certificates are files in PEM.
    """

    stream: str
    uri: str
    host: str
    port: int
    database: int
    key: str
    type: Literal["hash", "json"] = "hash"
    ttl_s: int | None = None
    user: str | None = None
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    secure: bool = False
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def place(self) -> str:
        """The place of the binding, for messages."""
        return f"the keys {self.key} of the database {self.database} on {self.host}:{self.port}"
