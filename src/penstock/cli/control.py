"""The command line of control: `penstock control send`, `status`, `history`. None of them needs Spark."""

from __future__ import annotations

import datetime as dt
import enum
import os
import sys
import uuid
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.bindings.parse import split_definition
from penstock.cli.job_target import CommandDraft, Patience
from penstock.cli.output import Output, OutputOption, escape, print_json, stderr
from penstock.cli.sent_commands import (
    CODES,
    COLOURS,
    NOT_SENT_CODE,
    WaitOption,
    print_receipt,
    send_and_wait,
    sender_name,
)
from penstock.cli.target import (
    CHECKPOINT_VARIABLE,
    OptionalJobArgument,
    Servers,
    TimeoutOption,
    asks_server,
)
from penstock.cli.times import format_instant
from penstock.commands.command_target import TARGET_FORMS
from penstock.commands.job_receipts import plain
from penstock.commands.receipt_history import CommandHistory
from penstock.errors import BindingError, CommandRefusedError
from penstock.streams.graph import COMMANDS

__all__ = ["control_app"]


class When(enum.StrEnum):
    """When a command takes effect in real time."""

    at_once = "at-once"
    at_checkpoint = "at-checkpoint"


_SENT: Final = "SENT"
# The width of tables that are not printed to a terminal: wide enough for all columns.
_FILE_COLUMNS: Final = 240
_CHECKPOINT_ONLY: Final = dict.fromkeys(
    ("issued_by", "define"),
    "goes with a checkpoint. A server knows who sends a command, and where the job reads it.",
)

control_app = typer.Typer(
    help="Send commands to a job, and follow their receipts.", no_args_is_help=True, add_completion=False
)


@control_app.command()
@asks_server(NOT_SENT_CODE)
def send(
    servers: Servers,
    context: typer.Context,
    kind: Annotated[str, typer.Option(metavar="K", help="The kind of command.")],
    job: OptionalJobArgument = None,
    target: Annotated[
        str, typer.Option(metavar="T", help=f"The target: {TARGET_FORMS}. * is the whole job.")
    ] = "*",
    keys: Annotated[
        str | None, typer.Option(metavar="JSON", help="Keys as a JSON array, if the target is a step.")
    ] = None,
    payload: Annotated[str | None, typer.Option("--json", metavar="PAYLOAD", help="The payload.")] = None,
    payload_file: Annotated[
        str | None, typer.Option("--json-file", metavar="F", help="A file with the payload; - is stdin.")
    ] = None,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The command's id. Default: a new one.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="The version; older ones than applied are rejected.")
    ] = None,
    effective_at: Annotated[
        str | None, typer.Option(metavar="ISO", help="The event time from which the command takes effect.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="ISO", help="Reject the command if it is read after this time.")
    ] = None,
    expires_in: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The same, in seconds from now.")
    ] = None,
    apply: Annotated[
        When,
        typer.Option(help="In real time: in each slot when it arrives, or in all at the checkpoint."),
    ] = When.at_once,
    issued_by: Annotated[
        str | None, typer.Option(metavar="NAME", help="The sender. Default: user@host.")
    ] = None,
    define: Annotated[
        str | None, typer.Option("-D", metavar="commands=URI", help="Where the job reads commands.")
    ] = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = 60.0,
    output: OutputOption = Output.text,
) -> None:
    """Send a command to a job, whether it runs or not.

    Exit codes: 0 sent, and with --wait applied; 1 not sent; 2 wrong use; with --wait also 3 rejected, 4 degraded,
    5 no final receipt in time (the command stays sent).
    """
    called = _named(job)
    now = dt.datetime.now(dt.UTC)
    draft = CommandDraft(
        kind=kind,
        target=target,
        keys=keys,
        payload=_payload(payload, payload_file),
        id=command_id,
        new_id=uuid.uuid4().hex,
        issued_by=sender_name() if issued_by is None else issued_by,
        issued_at=now,
        version=version,
        effective_at=_time("--effective-at", effective_at),
        expires_at=_expiry(expires_at, expires_in, now),
        apply=apply.value,
        commands_uri=_commands_uri(define),
    )
    patience = Patience(timeout, wait=wait)
    with servers.job(called, context, checkpoint_only=_CHECKPOINT_ONLY) as receiver:
        send_and_wait(receiver, draft, patience, output)


@control_app.command()
@asks_server(NOT_SENT_CODE)
def status(
    servers: Servers,
    place: Annotated[list[str], typer.Argument(metavar="[JOB] ID", help="The job, and the command's id.")],
    output: OutputOption = Output.text,
) -> None:
    """Show the receipts of one command.

    Leave the job out if the variable PENSTOCK_CHECKPOINT names a checkpoint. Exit codes: 0 applied, or not read yet;
    2 unknown id, or wrong use; 3 rejected; 4 degraded.
    """
    if len(place) > 2:
        raise CommandRefusedError(f"Got {len(place)} arguments. Give the job and one id.")
    called = _named(place[0] if len(place) == 2 else os.environ.get(CHECKPOINT_VARIABLE))
    command_id = place[-1]
    with servers.job(called) as target:
        history = target.history_of(command_id)
    if output is Output.json:
        receipts = [] if history is None else [plain(receipt) for receipt in history.receipts]
        newest = _SENT if history is None else history.last.status
        print_json({"id": command_id, "status": newest, "receipts": receipts})
    elif history is None:
        print(f"{command_id}: sent, no receipt yet")
    else:
        _show_history(history)
    raise typer.Exit(0 if history is None else CODES.get(history.last.status, 0))


@control_app.command()
@asks_server(NOT_SENT_CODE)
def history(
    servers: Servers,
    job: OptionalJobArgument = None,
    step: Annotated[
        str | None, typer.Option(metavar="S", help="Only commands for this step, or for the whole job.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="K", help="Only commands of this kind.")] = None,
    last: Annotated[int, typer.Option(metavar="N", min=1, help="How many commands.")] = 20,
    output: OutputOption = Output.text,
) -> None:
    """List the latest commands that a job has read, newest last."""
    with servers.job(_named(job)) as target:
        histories = target.histories(step, kind, last)
    if output is Output.json:
        for history in histories:
            print_json(plain(history.last))
    elif histories:
        # A file has no width to fit into.
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_FILE_COLUMNS)
        console.print(_table(histories))
    else:
        stderr.print("No such command has a receipt.")


def _named(job: str | None) -> str:
    if not job:
        raise CommandRefusedError(
            "Name a job: a job of the server or a checkpoint folder as an argument, or a checkpoint in the variable "
            f"{CHECKPOINT_VARIABLE}."
        )
    return job


def _commands_uri(define: str | None) -> str | None:
    if define is None:
        return None
    name, uri = split_definition(define)
    if name != COMMANDS:
        raise BindingError(f"-D {name}=... has no effect here. Only -D {COMMANDS}=URI does.")
    return uri


def _payload(text: str | None, file: str | None) -> msgspec.Raw:
    """Return the payload as JSON on one line. Raises CommandRefusedError for other text, or for two payloads."""
    if text is not None and file is not None:
        raise CommandRefusedError("Both --json and --json-file give a payload. Use one of them.")
    name = "--json"
    data = b"null" if text is None else text.encode(errors="surrogateescape")
    if file is not None:
        name = f"--json-file {file}"
        try:
            data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as e:
            raise CommandRefusedError(f"{name} cannot be read ({e.strerror or e}).") from None
    try:
        # Decoding only finds errors; the numbers stay as they were written.
        msgspec.json.decode(data)
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CommandRefusedError(f"The payload of {name} is not valid JSON: {e}.") from None


def _time(option: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise CommandRefusedError(
            f"{option} {text!r} is not an ISO 8601 time. An example is 2026-12-01T12:00:00Z."
        ) from None
    if time.tzinfo is None:
        raise CommandRefusedError(f"{option} {text!r} has no time zone. Add Z, or an offset such as +01:00.")
    return time


def _expiry(at: str | None, in_s: float | None, now: dt.datetime) -> dt.datetime | None:
    if at is not None and in_s is not None:
        raise CommandRefusedError("Both --expires-at and --expires-in give an expiry. Use one of them.")
    expiry = _time("--expires-at", at)
    if in_s is not None:
        try:
            expiry = now + dt.timedelta(seconds=in_s)
        except (OverflowError, ValueError):
            raise CommandRefusedError(f"--expires-in {in_s:g} is too far away to be a date.") from None
    if expiry is not None and expiry <= now:
        raise CommandRefusedError(f"The expiry {expiry.isoformat()} is in the past. Choose a later one.")
    return expiry


def _show_history(history: CommandHistory) -> None:
    console = Console(highlight=False)
    last = history.last
    version = "" if last.version is None else f"  version {last.version}"
    title = f"{last.id}  {last.kind} {last.target}{version}  by {last.issued_by or '-'}"
    console.print(escape(title), soft_wrap=True)
    for receipt in history.receipts:
        print_receipt(console.print, receipt)
    if last.details:
        console.print(escape(last.details), soft_wrap=True)


def _table(histories: list[CommandHistory]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("time", "id", "kind", "target"):
        table.add_column(title, overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("issued by", overflow="fold")
    table.add_column("status", no_wrap=True)
    for title in ("batch", "key groups", "keys"):
        table.add_column(title, justify="right")
    table.add_column("reason", overflow="fold")
    for receipt in (history.last for history in histories):
        texts = (receipt.id, receipt.kind, receipt.target)
        table.add_row(
            format_instant(receipt.at),
            *map(escape, texts),
            "" if receipt.version is None else str(receipt.version),
            escape(receipt.issued_by),
            f"[{COLOURS.get(receipt.status, 'default')}]{receipt.status}[/]",
            str(receipt.batch),
            f"{receipt.key_groups:,}",
            f"{receipt.keys:,}",
            escape(receipt.reason),
        )
    return table
