"""The command line: all commands of `penstock`."""

from __future__ import annotations

import sys

import typer

import penstock
from penstock.cli.control import control_app
from penstock.cli.doctor import doctor
from penstock.cli.init import init
from penstock.cli.managed import register_managed
from penstock.cli.metrics import register_metrics
from penstock.cli.run import demo, run
from penstock.cli.scaling import advise
from penstock.cli.serve import serve, token
from penstock.cli.state import register_state

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="Dynamically controlled streams on Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(control_app, name="control")
register_state(app)
register_metrics(app)
register_managed(app)
for command in (doctor, init, serve, token, advise, run, demo):
    app.command()(command)


def main() -> None:
    """Entry point of the `penstock` command."""
    # Completion goes by the name, also where this module is run.
    app(prog_name="penstock")


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{penstock.__version__}\n")
