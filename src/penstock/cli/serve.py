"""The command line of the job manager: `penstock serve`, and `penstock token` for its users."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import (
    Output,
    OutputOption,
    errors_as_sentences,
    escape,
    print_json,
    stderr,
    takes_options,
)
from penstock.server.runs.directory import ADDRESS_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.server.server import Started
    from penstock.server.service.job_resources import Job

__all__ = ["serve", "token"]

_SHOWN_JOBS: Final = 10


class _Options:
    """The options of the server, by the names of their parameters."""

    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:8081"
    jobs: Annotated[
        list[Path] | None,
        typer.Option("--jobs", metavar="FOLDER", help="A folder with job definitions. May be repeated."),
    ] = None
    home: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="The manager's folder: its store, and the checkpoints and savepoints of its jobs.",
        ),
    ] = Path("~/.penstock")
    shared: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where to keep checkpoints and savepoints, for servers on several machines: a folder, or "
            "s3://BUCKET/PREFIX or hdfs://HOST:PORT/PATH. Default: in the home.",
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_SERVER_STORE",
            help="sqlite:///PATH, postgresql://USER:PASSWORD@HOST/DATABASE or s3://BUCKET/PREFIX. Default: a file in "
            "the home.",
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The users: lines NAME ROLE TOKEN, from penstock token."),
    ] = None
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name of the server. May be repeated."),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate for TLS, in PEM.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None
    tls_proxy: Annotated[
        bool, typer.Option("--tls-proxy", help="A proxy in front of the server speaks TLS with browsers.")
    ] = False
    insecure_bind: Annotated[
        bool,
        typer.Option("--insecure-bind", help="Let other machines connect without tokens or TLS."),
    ] = False
    demo: Annotated[
        bool | None,
        typer.Option(
            "--demo/--no-demo",
            help="Offer a demo job, and run it if the home is empty. Default: without --jobs.",
            show_default=False,
        ),
    ] = None


@takes_options(_Options)
@errors_as_sentences()
def serve(output: OutputOption = Output.text, **given: Any) -> None:
    """Run the job manager with its REST API, until SIGTERM or Ctrl-C. Its jobs keep running after that.

    It listens on this machine only, unless it has tokens and TLS. Exit codes: 0 ended normally, 2 wrong use, 3 the
    store or the address cannot be used.
    """
    from penstock.server.server import ServeSettings
    from penstock.server.server import serve as run_server

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Alembic logs each migration, which interests nobody.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Without Java a job would only fail.
    has_java = _has_java()
    settings = ServeSettings(
        demo=given.pop("demo") if has_java else False,
        jobs=tuple(given.pop("jobs") or ()),
        hosts=tuple(given.pop("host") or ()),
        tls_certificate=given.pop("tls_cert"),
        **given,
    )
    run_server(
        settings, os.environ, lambda started: _print_address(started, output, settings.home), _print_end
    )


@errors_as_sentences()
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its user, which events show.")],
    role: Annotated[str, typer.Option(metavar="ROLE", help="viewer, operator or admin.")] = "viewer",
    output: OutputOption = Output.text,
) -> None:
    """Create a token, and its line for the file of penstock serve --tokens. The token is not stored."""
    from penstock.server.api.access import grants_of, hash_of, new_token

    made = new_token()
    line = f"{name} {role} {hash_of(made)}"
    grants_of([line], "the arguments")
    if output is Output.json:
        print_json({"token": made, "line": line})
    else:
        stderr.print("The token, shown only once, and its line for the file of tokens:")
        print(made)
        print(line)


def _has_java() -> bool:
    """Return whether jobs can run here; if not, print the remedy of the doctor."""
    from penstock.doctor.software import check_java

    java = check_java()
    if java.status == "failed":
        stderr.print(
            f"[yellow]No job can run here:[/] {escape(java.found)}. {escape(java.remedy)} Then start again; penstock "
            "doctor checks everything else.",
            soft_wrap=True,
        )
    return java.status != "failed"


def _print_address(started: Started, output: Output, home: Path) -> None:
    """Print the address of the server; its credentials only at a terminal, since others read logs."""
    private = sys.stdout.isatty()
    if output is Output.json:
        content = {"url": started.url, "pid": started.pid, "demo": started.demo}
        print_json(content | ({"login": started.login, "token": started.token} if private else {}))
        return
    if private:
        print(f"penstock listens at {started.url}. Open in a browser:\n\n    {started.login}\n", flush=True)
    else:
        where = home.expanduser().absolute() / ADDRESS_FILE
        print(f"penstock listens at {started.url}. Its owner logs in with the URL in {where}.", flush=True)
    if started.demo is not None:
        print(
            f"A demo job starts: {started.demo}. penstock info {started.demo} shows it, penstock cancel {started.demo} "
            f"ends it.\nJobs of your own: penstock serve --jobs FOLDER (docs/jobs.md).",
            flush=True,
        )


def _print_end(jobs: Sequence[Job]) -> None:
    """Print which jobs keep running without the server, and how to end them."""
    if not jobs:
        stderr.print("penstock serve has ended. No jobs are running.")
        return
    shown = ", ".join(job.id for job in jobs[:_SHOWN_JOBS])
    more = f" and {len(jobs) - _SHOWN_JOBS} more" if len(jobs) > _SHOWN_JOBS else ""
    stderr.print(
        f"penstock serve has ended. These jobs continue: {escape(shown)}{more}. The next penstock serve manages "
        "them; penstock list shows them and penstock cancel JOB ends one, even without a server.",
        soft_wrap=True,
    )
