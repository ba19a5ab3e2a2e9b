"""Streams of each kind for valid and invalid descriptions, and a check of the error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

import pytest

import penstock as ps
from penstock.errors import JobDefinitionError

__all__ = [
    "PENSTOCKS_FIELD",
    "SCHEMA",
    "BadSideOutput",
    "Measured",
    "Plain",
    "Silent",
    "Steered",
    "Streams",
    "UnstorableState",
    "gives_int",
    "gives_none",
    "refused",
    "yields",
]

SCHEMA = "id INT, name STRING, value DOUBLE"
PENSTOCKS_FIELD = make_dataclass("Odd", [("__offset", int)])


@dataclass
class Measured:
    id: int
    value: float


class Plain(ps.ProcessFunction):
    side_outputs: ClassVar[dict[str, Any]] = {"alarms": Measured}

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Measured]:
        yield record


class Steered(ps.ConnectedProcessFunction):
    def process_control(self, record: Any, ctx: ps.Context) -> None:
        pass

    def process_record(self, record: Any, ctx: ps.Context) -> Iterator[Measured]:
        yield record


class UnstorableState(Plain):
    memory = ps.ValueState(complex)


class BadSideOutput(Plain):
    side_outputs: ClassVar[dict[str, Any]] = {"alarms": int}


class Silent(ps.ProcessFunction):
    def process_record(self, record: Any, ctx: ps.Context) -> None:
        pass


class Streams:
    """A job with a stream of each kind."""

    def __init__(self) -> None:
        self.job = ps.Job("job")
        self.data = self.job.data_stream("readings", schema=SCHEMA)
        self.control = self.job.control_stream("settings", schema=SCHEMA)
        self.keyed = self.data.key_by("id")
        self.keyed_control = self.control.key_by("id")
        self.connected = self.keyed.connect(self.keyed_control)


def gives_none(record: Any) -> None:
    pass


def gives_int(record: Any) -> int:
    return 1


def yields(record: Any) -> Iterator[Measured]:
    yield record


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """Expect that a description is refused at once, in a short message with all of these parts."""
    with pytest.raises(JobDefinitionError) as raised:
        yield
    message = str(raised.value)
    for part in parts:
        assert part in message
    assert message.endswith(".")
    assert len(message) < 400
    assert raised.value.fault == "user"
