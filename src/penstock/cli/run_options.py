"""Options of runs, each declared once: of those here, and of those that a server is asked for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

__all__ = [
    "BATCH_INTERVAL",
    "AllowNonRestoredStateOption",
    "AllowReadOption",
    "AllowWriteOption",
    "BoundedOption",
    "CheckpointOption",
    "DefineOption",
    "FiguresOption",
    "FreshOption",
    "FromDumpOption",
    "FromSavepointOption",
    "JobFileArgument",
    "KeepPositionsOption",
    "LockTimeoutOption",
    "LogFormat",
    "LogFormatOption",
    "LogSizeOption",
    "MasterOption",
    "MaxCommandBytesOption",
    "MaxHeldBytesOption",
    "MetricsAllowRemoteOption",
    "MetricsBindOption",
    "MustContinueOption",
    "NewOutputsFromOption",
    "ParallelismOption",
    "ReceiptsOption",
    "ReplanOption",
    "StateMemoryOption",
    "StrictOption",
]


class LogFormat(StrEnum):
    """How a run reports what happens to it."""

    text = "text"
    json = "json"


BATCH_INTERVAL: Final = typer.Option(metavar="MS", help="Least time between micro-batches, in milliseconds.")

JobFileArgument = Annotated[
    str, typer.Argument(metavar="FILE[:ATTR]", help="The job file, and the job's name in it.")
]
DefineOption = Annotated[
    list[str] | None,
    typer.Option("-D", metavar="NAME=URI", help="Bind a stream or sink. May be repeated."),
]
BoundedOption = Annotated[bool, typer.Option("--bounded", help="Process what is there, then finish.")]
CheckpointOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder that keeps progress and state. Default: none is kept."),
]
ParallelismOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tasks that share each keyed step. Default: the number of cores."),
]
MasterOption = Annotated[str, typer.Option(metavar="URL", help="The Spark master.")]
MaxCommandBytesOption = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="The largest command that is taken; larger ones are rejected."),
]
MaxHeldBytesOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="How much data may wait for paused steps inside the job; beyond it data streams are not read.",
    ),
]
StateMemoryOption = Annotated[
    int,
    typer.Option(
        metavar="MB",
        min=0,
        help="How much state each worker keeps in memory; the rest is on its local disk.",
    ),
]
ReceiptsOption = Annotated[
    int,
    typer.Option(
        metavar="MB", min=1, help="How many receipts the checkpoint keeps; beyond it the oldest go."
    ),
]
FiguresOption = Annotated[
    int,
    typer.Option(
        metavar="MB",
        min=1,
        help="How many figures of micro-batches the checkpoint keeps; beyond it the oldest go.",
    ),
]
LogSizeOption = Annotated[
    int,
    typer.Option(
        metavar="MB",
        min=1,
        help="How much of Spark's log and of what functions print the checkpoint keeps.",
    ),
]
LockTimeoutOption = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0, help="How long to wait for another run that uses the checkpoint to end."
    ),
]
FromSavepointOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Begin with a savepoint, named by id or place, if CHECKPOINT is new."),
]
FromDumpOption = Annotated[
    str | None, typer.Option(metavar="URI", help="Begin with a dump, if CHECKPOINT is new.")
]
MustContinueOption = Annotated[
    bool,
    typer.Option(
        "--must-continue", help="Refuse to begin anew: CHECKPOINT must be there, say on a mounted disk."
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Put an existing checkpoint aside first, and begin anew.")
]
KeepPositionsOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-positions/--no-positions",
        help="Read the streams from where the snapshot stood. Default: for savepoints only.",
        show_default=False,
    ),
]
AllowNonRestoredStateOption = Annotated[
    bool,
    typer.Option("--allow-non-restored-state", help="Leave behind the state of steps that are gone."),
]
AllowReadOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PREFIX",
        help="Let commands have the job read this file or address, and what is below it. May be repeated.",
    ),
]
AllowWriteOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PREFIX",
        help="Let commands have the job write dumps below this folder or address. May be repeated.",
    ),
]
NewOutputsFromOption = Annotated[
    int | None,
    typer.Option(
        metavar="BATCH",
        min=0,
        help="Begin the outputs anew with this micro-batch, where sinks are ahead of the checkpoint.",
    ),
]
ReplanOption = Annotated[
    int | None,
    typer.Option(
        metavar="BATCH",
        min=0,
        help="Plan this unfinished micro-batch anew, with the bounds that the sources have now.",
    ),
]
MetricsBindOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve the job's metrics to Prometheus there, at /metrics."),
]
MetricsAllowRemoteOption = Annotated[
    bool,
    typer.Option("--metrics-allow-remote", help="Let others than this machine read the metrics."),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(help="The form of messages on stderr: for people, or one JSON object a line."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Stop at the first record that cannot be processed.")
]
