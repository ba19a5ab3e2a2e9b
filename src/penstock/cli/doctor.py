"""The command line of the doctor: `penstock doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from penstock.cli.output import Output, OutputOption, errors_as_sentences, escape, print_json, stderr, stdout

if TYPE_CHECKING:
    from penstock.doctor.findings import Finding

__all__ = ["doctor"]

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


@errors_as_sentences()
def doctor(
    job_file: Annotated[
        str | None,
        typer.Argument(metavar="FILE[:ATTR]", help="A job file whose job and bindings to check."),
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("-D", metavar="NAME=URI", help="A binding for the job. May be repeated."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="A checkpoint to check, or the folder for a new one.")
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", min=1, max=65535, help="A port of 127.0.0.1 that must be free. May be repeated."
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Check whether jobs can run here, and print a remedy for each problem.

    Starts no job and downloads nothing. Exit codes: 0 jobs can run, perhaps with warnings; 1 a check failed;
    2 wrong use.
    """
    from penstock.bindings.parse import split_definition
    from penstock.checkpoints.stored_checkpoint import is_stored
    from penstock.doctor.examination import Wanted, examine
    from penstock.doctor.findings import worst
    from penstock.errors import BindingError, CheckpointError

    if define and job_file is None:
        raise BindingError("-D binds the streams of a job. Name the job file too.")
    if checkpoint is not None and is_stored(checkpoint):
        raise CheckpointError(
            f"{checkpoint} is on an object store, and only folders are checked here. A start of the job checks it."
        )
    wanted = Wanted(
        checkpoint=None if checkpoint is None else Path(checkpoint).expanduser().absolute(),
        job_file=job_file,
        bindings=dict(split_definition(text) for text in define or []),
        ports=tuple(port or ()),
    )
    with stderr.status("Looking ..."):
        findings = list(examine(wanted))
    status = worst(findings)
    if output is Output.json:
        print_json({"status": status, "checks": findings})
    else:
        _tell(findings)
    if status == "failed":
        raise typer.Exit(1)


def _tell(findings: list[Finding]) -> None:
    table = Table("check", "", "found", "remedy")
    for finding in findings:
        colour = _COLOURS[finding.status]
        table.add_row(
            finding.check, f"[{colour}]{finding.status}[/]", escape(finding.found), escape(finding.remedy)
        )
    stdout.print(table)
    counts = {status: sum(f.status == status for f in findings) for status in _COLOURS}
    stdout.print(", ".join(f"{count} {status}" for status, count in counts.items() if count))
