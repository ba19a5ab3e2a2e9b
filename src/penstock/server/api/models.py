"""Models: what the API takes and gives, as its description shows it. Times are milliseconds since 1970, in UTC."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from penstock.server.lifecycle.statuses import Desired, JobStatus

__all__ = [
    "Command",
    "CommandStory",
    "CurrentUser",
    "Definition",
    "DefinitionProblem",
    "Definitions",
    "DesiredChange",
    "Event",
    "Health",
    "Id",
    "Job",
    "Log",
    "Operation",
    "Page",
    "Parallelism",
    "Rescale",
    "Run",
    "Savepoint",
    "SavepointDetails",
    "SentCommand",
    "ServerConfig",
    "SnapshotTable",
    "StateStep",
    "Submission",
]

_Item = TypeVar("_Item")


def _storable(text: str) -> str:
    """Text that every store can keep: no control characters, no halves of characters."""
    if not text.isprintable():
        raise ValueError("must have printable characters only")
    return text


ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
DefinitionId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}(\.[A-Za-z0-9_-]{1,128}){0,8}$")
]
Text = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_storable)]
Parallelism = Annotated[int, Field(strict=True, ge=1, le=32768)]


class ResponseModel(BaseModel):
    """What the server gives."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class RequestModel(BaseModel):
    """What a client sends. A field that there is not is refused, since a mistake in its name would go unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(ResponseModel, Generic[_Item]):
    """A part of a list. `next` is the value of `after` for the part that follows; null when there is none."""

    items: list[_Item]
    next: str | None = None


class Health(ResponseModel):
    """Whether the server answers, and leads."""

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
    hosts: list[str] = Field(description="The names that requests may call the server by.")
    store: Literal["sqlite", "postgresql"]
    poll_s: float = Field(description="How often the manager looks at the jobs, in seconds.")
    most_body_bytes: int = Field(description="The largest body of a request.")


class Definition(ResponseModel):
    """A job that may be submitted. Secrets in bindings are masked."""

    id: str
    name: str
    bindings: dict[str, str]
    settings: dict[str, Any]


class DefinitionProblem(ResponseModel):
    """A file that should define a job, and why it does not."""

    path: str
    problem: str


class Definitions(ResponseModel):
    """The definitions in the folders that the server was started with."""

    items: list[Definition]
    problems: list[DefinitionProblem]


class Scaling(ResponseModel):
    """How a job is scaled by itself."""

    policy: dict[str, Any] = Field(description="The scaling policy of its definition.")
    at_ms: int | None = Field(description="When the last decision was made; only in the answer for one job.")
    decision: dict[str, Any] | None = Field(
        description="The last decision: action, cause, before, tasks, reason, dry_run, load, rate, capacity."
    )


class Job(ResponseModel):
    """A job. Secrets in bindings and settings are masked."""

    id: str
    name: str
    definition: str
    status: JobStatus
    desired: Desired = Field(description="What a user wants the job to be.")
    reason: str = Field(description="Why it has its status.")
    since_ms: int = Field(description="Since when it has its status.")
    created_ms: int
    created_by: str
    run: int = Field(description="The number of its newest run; 0 before the first.")
    restarts: int = Field(description="How often it failed and was started again.")
    next_start_ms: int | None = Field(description="When a job that is RESTARTING is started.")
    restart: str = Field(description="Its restart strategy.")
    bindings: dict[str, str]
    settings: dict[str, Any]
    progress: dict[str, Any] | None = Field(description="How it is going; only in the answer for one job.")
    scaling: Scaling | None = Field(description="How it is scaled by itself; null without a policy.")


class Run(ResponseModel):
    """One run of a job, and how it ended."""

    run: int
    host: str
    created_ms: int
    pid: int | None
    ended_ms: int | None
    end_kind: str | None
    exit_code: int | None
    why: str | None


class Operation(ResponseModel):
    """What was asked for, and what came of it. Ask for it again while it is PENDING or RUNNING."""

    id: str
    kind: str
    job: str
    state: Literal["PENDING", "RUNNING", "DONE", "FAILED"]
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    error: str | None
    created_ms: int
    created_by: str
    ended_ms: int | None


class Event(ResponseModel):
    """Who did what, when, to which job."""

    id: int
    at_ms: int
    job_id: str | None
    who: str
    what: str
    detail: dict[str, Any]


class Savepoint(ResponseModel):
    """A savepoint that a job may begin with."""

    id: str
    job_name: str
    batch: int
    created_at: str | None
    uri: str


class SnapshotTable(ResponseModel):
    """A table of a snapshot: a state of a step, its timers, or what is kept once for the step."""

    name: str
    step: str
    kind: str
    rows: int
    bytes: int


class SavepointDetails(Savepoint):
    """A savepoint with what it holds."""

    key_groups: int
    rows: int
    bytes: int
    tables: list[SnapshotTable]
    positions: dict[str, Any] = Field(description="Where each stream goes on.")
    used_by: list[str] = Field(description="The jobs that are not over and began with it.")


class Log(ResponseModel):
    """What a run has printed."""

    run: int
    text: str
    end: int = Field(description="Where it ends, in bytes: `begin` of what the run prints from then on.")


class Submission(RequestModel):
    """A job to be run: the id of a definition, with changes."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"definition": "rooms", "parallelism": 4, "restart": "none"}]}
    )

    definition: DefinitionId
    name: Text | None = None
    parallelism: Parallelism | None = None
    batch_interval: Text | None = Field(None, description="Least time between micro-batches, such as 500ms.")
    restart: Text | None = Field(
        None, description="The restart strategy, such as fixed-delay:attempts=3,delay=10s."
    )
    keep_positions: pydantic.StrictBool | None = None
    allow_non_restored_state: pydantic.StrictBool | None = None
    new_outputs_from: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        None,
        description="Begin the outputs anew with this micro-batch, where sinks are ahead of the checkpoint; once.",
    )
    replan: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        None,
        description="Plan this unfinished micro-batch anew, with the bounds that the sources have now; once.",
    )
    scaling: Literal["off", "dry-run"] | None = Field(
        None, description="Leave the job with its tasks, or only tell what its scaling policy decides."
    )
    from_savepoint: Id | None = Field(None, description="The id of a savepoint to begin with.")
    continues: Id | None = Field(
        None,
        description="The id of a job that is over, whose checkpoint this one goes on with; not with from_savepoint.",
    )


class DesiredChange(RequestModel):
    """What a job is to be: RUNNING resumes it, PAUSED, FINISHED stops it, CANCELED ends it at once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"desired": "FINISHED", "savepoint": True}]})

    desired: Desired
    savepoint: pydantic.StrictBool = Field(False, description="Stop with a savepoint.")
    drain: pydantic.StrictBool = Field(False, description="Stop when all that is there is processed.")


class Rescale(RequestModel):
    """With how many tasks a job is to run."""

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
        None, description="Its id; a command of the same id is taken once. Default: a new one."
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


class CommandStory(ResponseModel):
    """What became of a command: its receipts in order. SENT says that the job has not read it yet."""

    id: str
    kind: str
    target: str
    version: int | None
    issued_by: str
    status: Literal["SENT", "ACCEPTED", "VALIDATED", "REJECTED", "APPLIED", "DEGRADED"]
    receipts: list[dict[str, Any]]


class StateStep(ResponseModel):
    """A step with its states, and how many keys it holds."""

    step: str
    keys: int
    key: str = Field(description="The type of its keys.")
    states: list[dict[str, str]]
