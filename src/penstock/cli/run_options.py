"""Options of runs, in this process and at a server, each declared once."""

from __future__ import annotations

from typing import Annotated, Final

import typer

__all__ = [
    "BATCH_INTERVAL",
    "AllowNonRestoredStateOption",
    "KeepPositionsOption",
    "NewOutputsFromOption",
    "ReplanOption",
]

BATCH_INTERVAL: Final = typer.Option(metavar="MS", help="Least time between micro-batches, in milliseconds.")
AllowNonRestoredStateOption = Annotated[
    bool,
    typer.Option("--allow-non-restored-state", help="Leave behind the state of steps that are gone."),
]
KeepPositionsOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-positions/--no-positions",
        help="Read the streams from where the snapshot stood. Default: for savepoints only.",
        show_default=False,
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
