"""Models of requests, and of responses that only REST has. Times are milliseconds since 1970, in UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

import pydantic
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from penstock.server.lifecycle.statuses import Desired
from penstock.server.runs.definitions import Parallelism, Text
from penstock.server.service.job_resources import Id

__all__ = [
    "Command",
    "CommandReceipts",
    "CurrentUser",
    "DesiredChange",
    "DumpRequest",
    "Health",
    "Page",
    "Rescale",
    "SentCommand",
    "ServerConfig",
]

_Item = TypeVar("_Item")


class ResponseModel(BaseModel):
    """What the server returns."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class RequestModel(BaseModel):
    """What a client sends. Unknown fields are refused, so that a misspelt name is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(ResponseModel, Generic[_Item]):
    """A part of a list. `next` is the value of `after` for the next part; null at the end."""

    items: list[_Item]
    next: str | None = None

    @classmethod
    def of(cls, found: Sequence[_Item], limit: int, place: Callable[[_Item], str]) -> Self:
        """The first items of a list, and the place of the last one if there are more."""
        items = list(found[:limit])
        return cls(items=items, next=place(items[-1]) if len(found) > limit else None)


class Health(ResponseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"


class CurrentUser(ResponseModel):
    """Who asks."""

    name: str
    role: str


class ServerConfig(ResponseModel):
    """How the server was started."""

    version: str
    url: str
    tls: bool
    hosts: list[str] = Field(description="The names of the server that requests may use.")
    store: Literal["sqlite", "postgresql"]
    poll_s: float = Field(description="How often the manager looks at the jobs, in seconds.")
    most_body_bytes: int = Field(description="The largest body of a request.")


class DesiredChange(RequestModel):
    """What a job should be: RUNNING resumes it, PAUSED pauses it, FINISHED stops it, CANCELED ends it at once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"desired": "FINISHED", "savepoint": True}]})

    desired: Desired
    savepoint: pydantic.StrictBool = Field(False, description="Stop with a savepoint.")
    drain: pydantic.StrictBool = Field(
        False, description="Stop when everything that has arrived is processed."
    )


class Rescale(RequestModel):
    """With how many tasks a job should run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"parallelism": 4}]})

    parallelism: Parallelism


class Command(RequestModel):
    """A command to a job, as `penstock control send` sends it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "set", "target": "thermostat/5", "payload": {"desired": 21.5}, "version": 3}
            ]
        }
    )

    kind: Text
    target: Text = Field("*", description="*, STEP, STEP/*, STEP/KEY or STEP/KEY,KEY.")
    keys: list[Any] | None = Field(None, description="Keys, for a target that is a step alone.")
    payload: Any = None
    id: Id | None = Field(
        None, description="Its id; the job takes a command with the same id once. Default: a new one."
    )
    version: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)] | None = None
    effective_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None


class SentCommand(ResponseModel):
    """A command that was sent."""

    id: str
    status: Literal["SENT"] = "SENT"
    kind: str
    target: str
    version: int | None
    issued_by: str


class CommandReceipts(ResponseModel):
    """What became of a command: its receipts in order. SENT means that the job has not read it yet."""

    id: str
    kind: str
    target: str
    version: int | None
    issued_by: str
    status: Literal["SENT", "ACCEPTED", "VALIDATED", "REJECTED", "APPLIED", "DEGRADED"]
    receipts: list[dict[str, Any]]


class DumpRequest(RequestModel):
    """How to dump the state."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"format": "csv"}]})

    format: Literal["csv", "jsonl", "parquet"] = "csv"
    batch: Annotated[int, Field(strict=True, ge=-1, lt=1 << 63)] | None = Field(
        None, description="After this micro-batch. Default: the newest that is committed."
    )
