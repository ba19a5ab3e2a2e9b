"""The binding of a custom connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["OWN_RECORDS_PER_BATCH", "PythonBinding"]

OWN_RECORDS_PER_BATCH: Final = 100_000
"""The most positions of a partition that a micro-batch reads of an own log, unless its binding says otherwise."""


@dataclass(frozen=True)
class PythonBinding:
    """A class of the user's that is a source or a sink. `uri` has secrets masked.

    `options` are the arguments of the class, whose values may be references. The facts about the class are known once
    it was imported: `kind`, `guarantee`, and `origin`, whether a sink wants to know what tells records apart.
    """

    stream: str
    uri: str
    module: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: Literal["json", "protobuf", "bytes"] = "json"
    max_records_per_batch: int = OWN_RECORDS_PER_BATCH
    kind: Literal["log", "receiver", "sink"] | None = None
    guarantee: str = ""
    origin: bool | None = None

    @property
    def place(self) -> str:
        """The place of the binding, for messages."""
        return f"{self.module}:{self.name}"
