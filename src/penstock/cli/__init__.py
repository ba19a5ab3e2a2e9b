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
from penstock.base.without_pandas import keep_pandas_out
from penstock.cli.advise import advise
from penstock.cli.control import control_app
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.init import init
from penstock.cli.metrics import register_metrics
from penstock.cli.models import models_app
from penstock.cli.query import query
from penstock.cli.rescale import rescale
from penstock.cli.run import run, sql
from penstock.cli.savepoint import savepoint
from penstock.cli.serve import serve, token
from penstock.cli.server_jobs import register_managed
from penstock.cli.state import state_app
from penstock.cli.stop import stop
from penstock.cli.submit import submit
from penstock.machine.priority import continue_yielding

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Dynamically controlled streams on Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (init, run, sql, demo, submit):
    app.command()(command)
register_managed(app)
for job_command in (savepoint, stop, rescale, advise, query):
    app.command()(job_command)
register_metrics(app)
app.add_typer(control_app, name="control")
app.add_typer(state_app, name="state")
app.add_typer(models_app, name="models")
for machine_command in (serve, token, doctor):
    app.command()(machine_command)


def main() -> None:
    """Entry point of the `penstock` command."""
    if sys.argv[1:2] == ["query"] or sys.argv[1:3] == ["state", "get"]:
        # Reading state gives way to a job on this machine.
        continue_yielding()
        keep_pandas_out()
    # Completion goes by the name, also where this module is run.
    app(prog_name="penstock")


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{__version__}\n")
