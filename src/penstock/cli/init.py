"""The command line of new projects: `penstock init`."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.output import Output, OutputOption, errors_as_sentences, escape, stderr

__all__ = ["init"]


@errors_as_sentences()
def init(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="The project's name, or a folder whose name it is.")
    ],
    sql: Annotated[bool, typer.Option("--sql", help="A job in SQL instead of Python.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Create a project: a job, sample input, a README with the commands to run it, and tests that pass.

    Exit codes: 0 created, 2 the name cannot be a package, or the folder is not empty or not writable.
    """
    from penstock.projects.new_project import make_project

    made = make_project(name, in_sql=sql)
    if output is Output.json:
        print(msgspec.json.encode(made, enc_hook=str).decode())
        return
    stderr.print(f"Created the project {escape(made.name)}, {len(made.files)} files. Run its tests:")
    # Penstock does not bring pytest along.
    missing = "" if importlib.util.find_spec("pytest") else "pip install pytest && "
    print(f"cd {shlex.quote(str(name))} && {missing}python -m pytest")
