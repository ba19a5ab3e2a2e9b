"""Targets of verbs: a checkpoint on this machine or a job of a server, and which server."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.checkpoints.stored_copies import read_copy
from penstock.cli.checkpoint_job import CheckpointJob
from penstock.cli.job_target import JobTarget
from penstock.cli.output import errors_as_sentences, with_options
from penstock.cli.server_job import ServerJob
from penstock.errors import JobDefinitionError, PenstockError
from penstock.jobs.requests import folder_of_run

if TYPE_CHECKING:
    from penstock.client.http import Server
    from penstock.server.unserved import UnservedHome

__all__ = [
    "CHECKPOINT_VARIABLE",
    "NO_PLACES",
    "JobArgument",
    "ManagedJobArgument",
    "NoWaitOption",
    "OptionalJobArgument",
    "Servers",
    "TimeoutOption",
    "asks_server",
    "complete_definitions",
    "complete_savepoints",
    "refuse_options",
]

CHECKPOINT_VARIABLE: Final = "PENSTOCK_CHECKPOINT"
_DEFAULT_HOME: Final = Path("~/.penstock")
NO_PLACES: Final = "names a place. A server has a place for savepoints of its own, so leave the option out."
_COMPLETION_S: Final = 0.5
_JOB: Final = (
    "A job of the server, by its id, name or the beginning of its id; or the folder of a checkpoint."
)
_MANAGED_JOB: Final = "A job of the server, by its id, name or the beginning of its id."


@dataclass(frozen=True)
class Servers:
    """Which server to ask: a named one, or else the one in a home; and which certificates to trust with TLS."""

    named: str | None
    home: Path
    ca: Path | None

    @contextmanager
    def connect(self, timeout_s: float | None = None) -> Iterator[Server]:
        """Connect to the server."""
        # The web client is loaded only by commands that ask.
        from penstock.client.discovery import find_server
        from penstock.client.http import Server

        address = find_server(self.named, self.home.expanduser().absolute(), self.ca, os.environ)
        with Server(address) if timeout_s is None else Server(address, timeout_s) as server:
            yield server

    @contextmanager
    def unserved(self) -> Iterator[UnservedHome | None]:
        """Yield the jobs of the home if no server is named and none runs there; otherwise None."""
        from penstock.client.discovery import SERVER_VARIABLE
        from penstock.server.runs.directory import ServerDirectory

        root = self.home.expanduser().absolute()
        # Only a home with a store may be without a server; the code that opens it is loaded just for that.
        if self.named or os.environ.get(SERVER_VARIABLE) or not ServerDirectory(root).store.exists():
            yield None
            return
        from penstock.server.unserved import is_unserved, open_unserved_home

        if not is_unserved(root):
            yield None
            return
        with open_unserved_home(root) as found:
            yield found

    @contextmanager
    def server_job(self, called: str) -> Iterator[ServerJob]:
        """Yield a job of the server."""
        from penstock.client.discovery import NoServerError
        from penstock.client.jobs import find_job

        try:
            with self.connect() as server:
                yield ServerJob(server, find_job(server, called))
        except NoServerError as e:
            if Path(called).is_dir():
                raise NoServerError(f"The folder {called} is not a checkpoint, and as a job: {e}") from None
            raise NoServerError(f"{called} is not a checkpoint here, and as a job: {e}") from None

    @contextmanager
    def job(
        self,
        called: str,
        context: typer.Context | None = None,
        *,
        checkpoint_only: Mapping[str, str] | None = None,
        server_only: Collection[str] = (),
    ) -> Iterator[JobTarget]:
        """Yield the job of this name: by its checkpoint, or else of the server.

        Raises JobDefinitionError when the command line has an option for the other kind only; the message is the option
        with its reason from `checkpoint_only`.
        """
        if _is_checkpoint(called):
            refuse_options(context, dict.fromkeys(server_only, "works with a job of a server only."))
            with _folder_of(called) as (folder, copy_of):
                yield CheckpointJob(folder, copy_of)
        else:
            refuse_options(context, checkpoint_only or {})
            with self.server_job(called) as job:
                yield job


class _ServerOptions:
    """The options that name a server."""

    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The server to ask. Default: PENSTOCK_SERVER, else the one in the home.",
        ),
    ] = None
    home: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="The manager's folder, which has the address of its server."),
    ] = _DEFAULT_HOME
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificates, in PEM, to trust with TLS instead of the system's."),
    ] = None


def asks_server(external_code: int = 3) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that name a server to a verb, which gets them as `servers`, and report errors as sentences.

    `external_code` is the exit code when an external system does not answer or refuses.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def command(server: str | None, home: Path, ca: Path | None, **given: Any) -> None:
            with errors_as_sentences(external_code):
                verb(servers=Servers(server, home, ca), **given)

        return with_options(command, verb, _ServerOptions)

    return decorate


@contextmanager
def _folder_of(called: str) -> Iterator[tuple[Path, str | None]]:
    """Yield the folder of a checkpoint; for one on an object store that no run here uses, a copy, and of what."""
    if not is_stored(called):
        yield Path(called).expanduser().absolute(), None
    elif (folder := folder_of_run(called)) is not None:
        yield folder, None
    else:
        with read_copy(called) as copied:
            yield copied, called


def _is_checkpoint(job: str) -> bool:
    """Return whether a text names a checkpoint: it has a slash, begins like a path, or is a checkpoint's folder here.

    Another folder of that name, say of a project, does not hide a job.

    >>> _is_checkpoint("./rooms"), _is_checkpoint("s/rooms"), _is_checkpoint("rooms-1f")
    (True, True, False)
    """
    return os.sep in job or job.startswith(("~", ".")) or (job != "" and Checkpoint(Path(job)).is_begun)


def _find_given_options(context: typer.Context) -> dict[str, str]:
    """Return the options on the command line by parameter, as they are written there."""
    return {
        str(parameter.name): max(parameter.opts, key=len)
        for parameter in context.command.params
        if (source := context.get_parameter_source(str(parameter.name))) is not None
        and source.name == "COMMANDLINE"
    }


def refuse_options(context: typer.Context | None, reasons: Mapping[str, str]) -> None:
    """Raise JobDefinitionError with the reason when the command line has one of these parameters."""
    given = {} if context is None else _find_given_options(context)
    for name, reason in reasons.items():
        if name in given:
            raise JobDefinitionError(f"{given[name]} {reason}")


def _complete_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids and names of the server's jobs. If none fits, the shell completes file names."""
    jobs = _get_items(context, "/v1/jobs?limit=1000")
    names = {job["name"] for job in jobs} | {job["id"] for job in jobs}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_definitions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the server's definitions."""
    found = (definition["id"] for definition in _get_items(context, "/v1/definitions"))
    return sorted(name for name in found if name.startswith(incomplete))


def complete_savepoints(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the server's savepoints."""
    found = (savepoint["id"] for savepoint in _get_items(context, "/v1/savepoints?limit=1000"))
    return sorted(name for name in found if name.startswith(incomplete))


def _get_items(context: typer.Context, path: str) -> list[dict[str, Any]]:
    """Return the items of the server if it answers at once: a shell waits for them, and shows no errors."""
    given = context.params
    servers = Servers(given.get("server"), Path(given.get("home") or _DEFAULT_HOME), given.get("ca"))
    try:
        with servers.connect(_COMPLETION_S) as server:
            found: list[dict[str, Any]] = server.get(path)["items"]
            return found
    except PenstockError:
        return []


JobArgument = Annotated[str, typer.Argument(metavar="JOB", help=_JOB, autocompletion=_complete_jobs)]
OptionalJobArgument = Annotated[
    str | None,
    typer.Argument(metavar="JOB", envvar=CHECKPOINT_VARIABLE, help=_JOB, autocompletion=_complete_jobs),
]
ManagedJobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help=_MANAGED_JOB, autocompletion=_complete_jobs)
]
NoWaitOption = Annotated[
    bool,
    typer.Option("--no-wait", help="Print the id of the server's operation instead of waiting for its end."),
]
TimeoutOption = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait.")]
