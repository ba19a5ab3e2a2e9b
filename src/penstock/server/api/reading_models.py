"""Models of what is read of a job: its plan, figures, checkpoints and dead letters."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Plan", "PlanEdge", "PlanNode", "PlanPlace", "PlanState", "PlanWatermarks", "PlanWindows"]


class _Read(BaseModel):
    """What the server gives."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class PlanPlace(_Read):
    """Where a stream or sink is. Secrets are masked."""

    uri: str
    format: str | None


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
