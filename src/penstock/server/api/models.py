"""Models: requests, and responses that only REST has. Times are milliseconds since 1970, in UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

import pydantic
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from penstock.control.commands import AT_ONCE, Apply
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
    """The base of responses."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class RequestModel(BaseModel):
    """The base of requests. Unknown fields are refused, so that misspelt names are noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(ResponseModel, Generic[_Item]):
    """A page of a list. `next` is the value of `after` for the next page; null at the end."""

    items: list[_Item]
    next: str | None = None

    @classmethod
    def of(cls, found: Sequence[_Item], limit: int, place: Callable[[_Item], str]) -> Self:
        """Return a page of the first `limit` items; `next` is the place of the last one if there are more."""
        items = list(found[:limit])
        return cls(items=items, next=place(items[-1]) if len(found) > limit else None)


class Health(ResponseModel):
    """The health of the server."""

    status: Literal["ok"] = "ok"


class CurrentUser(ResponseModel):
    """The current user."""

    name: str
    role: str


class ServerConfig(ResponseModel):
    """The settings of the server."""

    version: str = Field(description="The version of penstock.")
    url: str
    tls: bool = Field(description="Whether clients use https.")
    hosts: list[str] = Field(description="The host names that requests may use for the server.")
    store: Literal["sqlite", "postgresql", "object store"]
    poll_s: float = Field(description="The interval at which the manager checks jobs, in seconds.")
    max_body_bytes: int = Field(description="The largest allowed request body, in bytes.")


class DesiredChange(RequestModel):
    """The desired status of a job: RUNNING resumes, PAUSED pauses, FINISHED stops it, CANCELED ends it at once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"desired": "FINISHED", "savepoint": True}]})

    desired: Desired
    savepoint: pydantic.StrictBool = Field(
        False, description="Take a savepoint when stopping; only with FINISHED."
    )
    drain: pydantic.StrictBool = Field(
        False, description="Stop only after all arrived records are processed; only with FINISHED."
    )


class Rescale(RequestModel):
    """The new parallelism of a job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"parallelism": 4}]})

    parallelism: Parallelism = Field(description="The number of tasks of each keyed level.")


class Command(RequestModel):
    """A command to a job, as `penstock control send` sends it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "set", "target": "thermostat/5", "payload": {"desired": 21.5}, "version": 3}
            ]
        }
    )

    kind: Text = Field(
        description="The kind of the command; the plan of the job lists the kinds that its steps take."
    )
    target: Text = Field(
        "*", description="What the command applies to: *, STEP, STEP/*, STEP/KEY or STEP/KEY,KEY."
    )
    keys: list[Any] | None = Field(None, description="Keys, as JSON values, if the target is only a step.")
    payload: Any = Field(None, description="Any JSON value.")
    id: Id | None = Field(
        None, description="The id of the command. A job takes each id only once. Default: a new id."
    )
    version: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)] | None = Field(
        None,
        description="Orders commands of one kind for one target: a version lower than an applied one is rejected.",
    )
    effective_at: AwareDatetime | None = Field(
        None, description="The event time from which the command holds. Default: the cut of its micro-batch."
    )
    expires_at: AwareDatetime | None = Field(
        None, description="The time from which the job rejects the command when it reads it."
    )
    apply: Apply = Field(
        AT_ONCE,
        description="In real time, when the command takes effect: in each slot when it arrives, or in all slots at the "
        "end of the interval. A micro-batch has one cut, which is both.",
    )


class SentCommand(ResponseModel):
    """A sent command."""

    id: str
    status: Literal["SENT"] = "SENT"
    kind: str
    target: str
    version: int | None
    issued_by: str


class CommandReceipts(ResponseModel):
    """The status of a command and its receipts, oldest first. SENT means that the job has not read it yet."""

    id: str
    kind: str
    target: str
    version: int | None
    issued_by: str
    status: Literal["SENT", "ACCEPTED", "VALIDATED", "REJECTED", "APPLIED", "DEGRADED"]
    receipts: list[dict[str, Any]]


class QueryRequest(RequestModel):
    """A query over the state of a job, and what it may take."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sql": "SELECT count(*) FROM state.rooms"}]})

    sql: Annotated[str, Field(min_length=1, max_length=16384, description="A SELECT over `state.STEP`.")]
    memory_mb: Annotated[int, Field(strict=True, ge=1, le=1024, description="Memory, in MiB.")] = 1024
    seconds: Annotated[float, Field(gt=0, le=60, description="How long the query may take.")] = 30.0
    rows: Annotated[int, Field(strict=True, ge=1, le=100_000, description="Rows of the result.")] = 10_000


class DumpRequest(RequestModel):
    """The format and micro-batch of a dump of the state."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"format": "csv"}]})

    format: Literal["csv", "jsonl", "parquet"] = "csv"
    batch: Annotated[int, Field(strict=True, ge=-1, lt=1 << 63)] | None = Field(
        None, description="Dump the state after this micro-batch. Default: the newest committed one."
    )
