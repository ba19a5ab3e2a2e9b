"""Models of what is read of a job: its plan, figures, checkpoints and dead letters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Advice",
    "Batch",
    "BatchStep",
    "Checkpoint",
    "Checkpoints",
    "DeadLetter",
    "DeadLetters",
    "Dump",
    "DumpRequest",
    "JobConfig",
    "JobLag",
    "Keys",
    "Memory",
    "Metrics",
    "Plan",
    "PlanEdge",
    "PlanNode",
    "PlanPlace",
    "PlanState",
    "PlanWatermarks",
    "PlanWindows",
    "Reason",
    "Setting",
    "SinkMetrics",
    "StepMetrics",
    "StoredKey",
    "StreamMetrics",
]


class _Read(BaseModel):
    """What the server gives."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class PlanPlace(_Read):
    """Where a stream or sink is. Secrets are masked."""

    uri: str
    format: str | None
    limits: dict[str, int] = Field(
        description="How much of a stream goes into one micro-batch at most, in records, files and bytes."
    )


class PlanWatermarks(_Read):
    """How the watermark of a stream follows from the event times of its records."""

    by: Literal["event time", "ingestion time"]
    generator: str | None
    bound_ms: int | None = Field(description="How far behind the newest of their partition records may be.")
    idle_ms: int | None = Field(description="When a partition from which nothing comes holds time no more.")
    max_ahead_ms: int | None = Field(description="A record further ahead of the clock becomes a dead letter.")


class PlanWindows(_Read):
    """The windows of a step."""

    assigner: str
    trigger: str
    contents: str
    evictor: str | None
    parameters: dict[str, Any] = Field(description="What commands may change, as the job declares it.")


class PlanState(_Read):
    """A state of a step."""

    name: str
    kind: str
    type: str
    keyed: bool = Field(description="Whether there is one for each key, or one for the step.")


class PlanNode(_Read):
    """A part of a job: a stream, a stateless function, a step, or a sink."""

    id: str
    kind: Literal[
        "data stream",
        "control stream",
        "map",
        "filter",
        "flat_map",
        "event time",
        "union",
        "step",
        "sink",
    ]
    name: str
    records: dict[str, dict[str, str]] = Field(
        description="The fields of what leaves it, by output; the main output has an empty name."
    )
    binding: PlanPlace | None
    time: str | None = Field(description="The field with the event time.")
    watermarks: PlanWatermarks | None
    function: str | None
    level: int | None = Field(description="Of a step: how many shuffles there are up to it.")
    key: list[str] = Field(description="The fields of its key, or the function that makes it.")
    key_type: str | None
    windows: PlanWindows | None
    has_timers: bool = Field(description="Whether it may have timers by the clock.")
    by_event_time: bool = Field(description="Whether it has a watermark.")
    states: list[PlanState]
    commands: dict[str, list[str]] = Field(
        description="The kinds of commands that it takes, with their scopes."
    )
    settings: dict[str, Any] = Field(
        description="The settings of a step as they are in force, with what holds from an event time on."
    )


class PlanEdge(_Read):
    """What leaves an output of a part and goes into another."""

    source: str
    target: str
    output: str = Field(description="Empty for the main output.")
    kind: Literal["forward", "keyed", "broadcast"]
    is_control: bool
    key: list[str]


class Plan(_Read):
    """What a job is made of. Each part comes behind what it reads."""

    job: str
    key_groups: int
    parallelism: int
    nodes: list[PlanNode]
    edges: list[PlanEdge]
    commands: PlanPlace | None = Field(description="Where commands come from.")
    receipts: PlanPlace | None = Field(description="Where receipts go beside the checkpoint.")
    dead_letters: PlanPlace


class JobLag(_Read):
    """What waits in the source of a stream, in the units that the source knows."""

    records: int | None
    files: int | None
    bytes: int | None
    seconds: float | None = Field(description="How long the oldest has waited since the run first saw it.")


class StreamMetrics(_Read):
    """A stream."""

    name: str
    records: int | None = Field(description="Records that were read since the run began; null for commands.")
    per_second: float | None
    lag: JobLag | None


class StepMetrics(_Read):
    """A step."""

    name: str
    records: int = Field(description="Data records that were processed since the run began.")
    per_second: float
    late: int
    without_window: int
    keys: int
    state_bytes: int
    held_bytes: int = Field(description="Data that waits while the step is paused.")
    skew: float | None = Field(description="Records of the task with the most, by the mean over tasks.")
    key_skew: float | None
    watermark_ms: int | None


class SinkMetrics(_Read):
    """A sink."""

    name: str
    records: int = Field(description="Records that were written since the run began.")
    per_second: float


class Memory(_Read):
    """The memory of a run at one moment."""

    driver_bytes: int
    jvm_bytes: int
    workers_bytes: int
    heap_used_bytes: int
    heap_max_bytes: int
    gc_seconds: float


class BatchStep(_Read):
    """A step in one micro-batch."""

    records: int
    skew: float | None
    keys: int
    key_skew: float | None
    state_bytes: int
    held_bytes: int
    late: int
    without_window: int
    watermark_ms: int | None


class Batch(_Read):
    """What happened in one micro-batch."""

    batch: int
    run: str = Field(description="The id that the run has in its events and metrics.")
    started_ms: int
    ended_ms: int
    duration_s: float
    busy_s: float = Field(description="How long the job was at work in it.")
    idle_s: float | None = Field(description="How long the job had waited before it.")
    phases: dict[str, float] = Field(description="Seconds of the parts of its duration.")
    state_commit_s: float = Field(description="Time that tasks took to commit state, added up over tasks.")
    parallelism: int
    cores: int
    records_in: dict[str, int]
    records_out: dict[str, int]
    dead_letters: int
    commands: dict[str, int]
    lag: dict[str, JobLag]
    steps: dict[str, BatchStep]
    memory: Memory | None


class Metrics(_Read):
    """How a job is doing. Rates are over the last `seconds`; of a job that does not run, over its last ones."""

    running: bool
    seconds: float
    batches_per_second: float
    utilisation: float = Field(description="For which part of the time the job was at work, from 0 to 1.")
    mean_busy_s: float
    dead_letters: int
    dead_letters_per_second: float
    commands: dict[str, int] = Field(description="Commands that came to their end, by what became of them.")
    commands_per_second: float
    streams: list[StreamMetrics]
    steps: list[StepMetrics]
    sinks: list[SinkMetrics]
    batches: list[Batch] = Field(description="The newest micro-batches that were asked for, oldest first.")


class Advice(_Read):
    """What a job wants, as `penstock advise -o json` tells it."""

    has_policy: bool = Field(
        description="Whether its definition has a scaling policy, by which it is advised."
    )
    advice: dict[str, Any]
    decision: dict[str, Any] | None = Field(description="What the policy would decide now.")


class Checkpoint(_Read):
    """A committed micro-batch that is kept. What its figures would tell is null when they are gone."""

    batch: int
    committed_ms: int
    duration_s: float | None
    state_bytes: int | None
    keys: int | None


class Checkpoints(_Read):
    """The checkpoint of a job, and the micro-batches to which it can go back, newest first."""

    lineage: str = Field(description="Names the whole life of the checkpoint.")
    epoch: int = Field(description="How often a job was started on it.")
    parallelism: int
    key_groups: int
    retained_batches: int = Field(description="To how many micro-batches it can go back.")
    origin: Literal["empty", "savepoint", "dump", "rescale"] = Field(description="What the job began with.")
    origin_id: str
    items: list[Checkpoint]
    next: str | None = Field(description="The value of `after` for the part that follows.")


class DeadLetter(_Read):
    """A record that could not be processed."""

    at_ms: int = Field(description="When it was written.")
    batch: int | None = Field(description="By which micro-batch; null for one in a topic.")
    reason: str
    stream: str
    step: str
    partition: str
    offset: int
    raw: str = Field(description="What the source had, cut where it is long.")
    encoding: Literal["text", "base64"] = Field(description="How `raw` tells it.")
    raw_bytes: int = Field(description="How long it is.")


class Reason(_Read):
    """Why records could not be processed, and how many of those that are listed."""

    reason: str
    step: str
    stream: str
    count: int


class DeadLetters(_Read):
    """The newest dead letters, oldest first, and their reasons, the most frequent first."""

    items: list[DeadLetter]
    reasons: list[Reason]


class Setting(_Read):
    """A setting of a job. Secrets are masked."""

    name: str
    value: Any
    default: Any
    is_default: bool


class JobConfig(_Read):
    """With what a job runs."""

    definition: str
    bindings: dict[str, str]
    limits: dict[str, dict[str, int]] = Field(
        description="How much of each stream goes into a micro-batch at most, in records, files and bytes. Empty "
        "before the first start has told it."
    )
    settings: list[Setting]


class StoredKey(_Read):
    """A key with what its step holds for it."""

    key: Any
    key_group: int
    bytes: int = Field(description="How much JSON it is all together.")
    values: dict[str, Any] | None = Field(description="The states by name; null when it is too much to tell.")
    timers: Any
    windows: Any


class Keys(_Read):
    """Some keys of a step, after a micro-batch."""

    batch: int
    items: list[StoredKey]
    next: str | None


class Dump(_Read):
    """A dump of the state of a job."""

    id: str
    job: str = Field(description="The id of the job.")
    job_name: str
    batch: int
    format: str
    created_ms: int
    created_by: str
    rows: int
    bytes: int


class DumpRequest(BaseModel):
    """How the state is to be dumped."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"examples": [{"format": "csv"}]}
    )

    format: Literal["csv", "jsonl", "parquet"] = "csv"
    batch: Annotated[int, Field(strict=True, ge=-1, lt=1 << 63)] | None = Field(
        None, description="After this micro-batch. Default: the newest that is committed."
    )
