"""Options of runs, in this process and at a server, each declared once."""

from __future__ import annotations

from typing import Annotated, Final

import typer

__all__ = [
    "BATCH_INTERVAL",
    "CHECKPOINT_INTERVAL",
    "AllowNonRestoredStateOption",
    "KeepPositionsOption",
    "NewOutputsFromOption",
    "ReplanOption",
]

BATCH_INTERVAL: Final = typer.Option(metavar="MS", help="Least time between micro-batches, in milliseconds.")
CHECKPOINT_INTERVAL: Final = typer.Option(
    metavar="TIME",
    help="Run in real time, with checkpoints this far apart, such as 5s. Default: micro-batches.",
)
AllowNonRestoredStateOption = Annotated[
    bool,
    typer.Option("--allow-non-restored-state", help="Drop the state of steps that the job no longer has."),
]
KeepPositionsOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-positions/--no-positions",
        help="Read the streams on from the positions in the snapshot. Default: for savepoints only.",
        show_default=False,
    ),
]
NewOutputsFromOption = Annotated[
    int | None,
    typer.Option(
        metavar="BATCH",
        min=0,
        help="Begin the outputs anew with this micro-batch, if sinks are ahead of the checkpoint.",
    ),
]
ReplanOption = Annotated[
    int | None,
    typer.Option(
        metavar="BATCH",
        min=0,
        help="Plan this unfinished micro-batch anew, with the present bounds of the sources.",
    ),
]
