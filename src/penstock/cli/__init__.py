"""The command line: all commands of `penstock`.

In: words.
Out: text or JSON, and an exit code.
Imports: base, bindings, checkpoints, client, commands, control, demo, doctor, errors, jobs, machine, metrics, models,
    projects, queries, savepoints, scaling, server, snapshots, spark, sql, streams.
"""

from __future__ import annotations

import sys

import typer

from penstock.base.version import __version__
from penstock.cli.command_group import CommandGroup

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the `penstock` command."""
    if sys.argv[1:2] == ["query"] or sys.argv[1:3] == ["state", "get"]:
        from penstock.base.without_pandas import keep_pandas_out
        from penstock.machine.priority import continue_yielding

        # Reading state gives way to a job on this machine.
        continue_yielding()
        keep_pandas_out()
    # Completion goes by the name, also where this module is run.
    app(prog_name="penstock")


@app.callback()
def _describe() -> None:
    """Dynamically controlled streams on Apache Spark."""


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")
