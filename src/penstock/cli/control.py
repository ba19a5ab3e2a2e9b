"""The operator's side of control: `penstock control send`, `status`, `history`. None of them needs Spark."""

from __future__ import annotations

import datetime as dt
import os
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.bindings import redacted, split_definition
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, stderr
from penstock.control.commands import Command
from penstock.control.receipts import Receipt
from penstock.errors import BindingError, CommandRefusedError
from penstock.jobs.control import ControlEntry, read_control_entry
from penstock.jobs.events import user_name
from penstock.jobs.history import NewReceipts, Story, Wanted, await_end, newest_stories, story_of
from penstock.jobs.receipts import plain
from penstock.jobs.sending import command_binding, find_waiting, send_command
from penstock.jobs.targeting import TARGET_FORMS, check_known, parse_target
from penstock.streams.graph import COMMANDS

__all__ = ["control_app"]

_VARIABLE: Final = "PENSTOCK_CHECKPOINT"
_SENT: Final = "SENT"
_REFUSED_CODE: Final = 2
_NOT_SENT_CODE: Final = 1
_CODES: Final = {"APPLIED": 0, "REJECTED": 3, "DEGRADED": 4}
_TIMED_OUT_CODE: Final = 5
# Where no terminal says how wide a line is, a table is not squeezed.
_FILE_COLUMNS: Final = 240

control_app = typer.Typer(
    help="Send commands to a job, and see what became of them.", no_args_is_help=True, add_completion=False
)

CheckpointArgument = Annotated[
    str | None,
    typer.Argument(metavar="CHECKPOINT", envvar=_VARIABLE, help="The job's checkpoint folder."),
]


@control_app.command()
def send(
    kind: Annotated[str, typer.Option(metavar="K", help="What is to be done: the kind of command.")],
    checkpoint: CheckpointArgument = None,
    target: Annotated[
        str, typer.Option(metavar="T", help=f"Whom it is for: {TARGET_FORMS}. The whole job is *.")
    ] = "*",
    keys: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Keys as a JSON array, for a target that is a step."),
    ] = None,
    payload: Annotated[str | None, typer.Option("--json", metavar="PAYLOAD", help="The payload.")] = None,
    payload_file: Annotated[
        str | None, typer.Option("--json-file", metavar="F", help="A file with the payload; - is stdin.")
    ] = None,
    command_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The command's id. Default: a new one.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="A lower version than applied is rejected.")
    ] = None,
    effective_at: Annotated[
        str | None, typer.Option(metavar="ISO", help="The event time from which it holds.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="ISO", help="It is rejected when it is read after this time.")
    ] = None,
    expires_in: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The same, counted from now.")
    ] = None,
    issued_by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who sends it. Default: user@host.")
    ] = None,
    define: Annotated[
        str | None,
        typer.Option("-D", metavar="commands=URI", help="Where the job's commands come from."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is applied or rejected.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait.")] = 60.0,
    output: OutputOption = Output.text,
) -> None:
    """Send a command to a job, whether it runs at the moment or not.

    Exit codes: 0 sent, and with --wait applied; 1 it could not be sent; 2 wrong use; with --wait also 3 rejected, 4
    degraded, 5 no final receipt in time (the command stays sent).
    """
    with errors_as_sentences(_NOT_SENT_CODE):
        folder = _checkpoint(checkpoint)
        entry = read_control_entry(folder)
        binding = command_binding(entry, _commands_uri(define))
        now = dt.datetime.now(dt.UTC)
        command = Command(
            id=uuid.uuid4().hex if command_id is None else command_id,
            kind=kind,
            target=parse_target(target, keys, entry),
            version=version,
            issued_by=_issuer() if issued_by is None else issued_by,
            issued_at=now,
            effective_at=_time("--effective-at", effective_at),
            expires_at=_expiry(expires_at, expires_in, now),
            payload=_payload(payload, payload_file),
        )
        check_known(command, entry)
        new = NewReceipts(folder) if wait else None
        send_command(command, binding)
        if output is Output.text:
            print(command.id, flush=True)
        sent = {
            "id": command.id,
            "status": _SENT,
            "kind": command.kind,
            "target": str(command.target),
            "version": command.version,
            "issued_by": command.issued_by,
            "commands": redacted(binding.uri),
        }
        if new is None:
            if output is Output.json:
                _print_json(sent)
            return
        # Only an id that was chosen can have receipts from before.
        final = _awaited(new, command.id, timeout, look_back=command_id is not None)
        if output is Output.json:
            _print_json(sent if final is None else plain(final))
        raise typer.Exit(_TIMED_OUT_CODE if final is None else _CODES[final.status])


@control_app.command()
def status(
    place: Annotated[
        list[str], typer.Argument(metavar="[CHECKPOINT] ID", help="The checkpoint, and the command's id.")
    ],
    output: OutputOption = Output.text,
) -> None:
    """Show what became of one command.

    The checkpoint may be left out when the variable PENSTOCK_CHECKPOINT names it. Exit codes: 0 applied, or not read
    yet; 2 unknown id, or wrong use; 3 rejected; 4 degraded.
    """
    with errors_as_sentences(_NOT_SENT_CODE):
        if len(place) > 2:
            raise CommandRefusedError(f"{len(place)} arguments are too many. Give the checkpoint and one id.")
        folder = _checkpoint(place[0] if len(place) == 2 else os.environ.get(_VARIABLE))
        entry = read_control_entry(folder)
        command_id = place[-1]
        story = story_of(folder, command_id)
        if story is None:
            _show_waiting(command_id, entry, output)
            return
        if output is Output.json:
            receipts = [plain(receipt) for receipt in story.receipts]
            _print_json({"id": command_id, "status": story.last.status, "receipts": receipts})
        else:
            _show_story(story)
        raise typer.Exit(_CODES.get(story.last.status, 0))


@control_app.command()
def history(
    checkpoint: CheckpointArgument = None,
    step: Annotated[
        str | None, typer.Option(metavar="S", help="Only commands for this step, or for the whole job.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="K", help="Only commands of this kind.")] = None,
    last: Annotated[int, typer.Option(metavar="N", min=1, help="How many, the newest.")] = 20,
    output: OutputOption = Output.text,
) -> None:
    """List the newest commands that a job has read, newest last."""
    with errors_as_sentences(_NOT_SENT_CODE):
        folder = _checkpoint(checkpoint)
        stories = newest_stories(folder, Wanted(read_control_entry(folder), step, kind), last)
        if output is Output.json:
            for story in stories:
                _print_json(plain(story.last))
        elif stories:
            # A file is no terminal, and has no width to fit into.
            console = Console(highlight=False)
            if not console.is_terminal:
                console = Console(highlight=False, width=_FILE_COLUMNS)
            console.print(_table(stories))
        else:
            stderr.print("No such command has a receipt.")


def _checkpoint(path: str | None) -> Path:
    if not path:
        raise CommandRefusedError(
            f"No checkpoint is named. Give the job's checkpoint folder as an argument, or in the variable {_VARIABLE}."
        )
    return Path(path).expanduser().absolute()


def _commands_uri(define: str | None) -> str | None:
    if define is None:
        return None
    name, uri = split_definition(define)
    if name != COMMANDS:
        raise BindingError(f"-D {name}=... has no meaning here; only -D {COMMANDS}=URI has.")
    return uri


def _issuer() -> str:
    return f"{user_name()}@{socket.gethostname()}"


def _payload(text: str | None, file: str | None) -> msgspec.Raw:
    """The payload as JSON on one line. CommandRefusedError when it is none, or given twice."""
    if text is not None and file is not None:
        raise CommandRefusedError("The payload is given by --json and by --json-file. Use one of the two.")
    name = "--json"
    data = b"null" if text is None else text.encode(errors="surrogateescape")
    if file is not None:
        name = f"--json-file {file}"
        try:
            data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as e:
            raise CommandRefusedError(f"{name} cannot be read ({e.strerror or e}).") from None
    try:
        # Decoding finds what is wrong; the numbers stay as they were written.
        msgspec.json.decode(data)
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CommandRefusedError(f"The payload of {name} is no JSON: {e}.") from None


def _time(option: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise CommandRefusedError(
            f"{option} {text!r} is no time in ISO 8601. Write for example 2026-12-01T12:00:00Z."
        ) from None
    if time.tzinfo is None:
        raise CommandRefusedError(f"{option} {text!r} has no time zone. Add Z, or an offset such as +01:00.")
    return time


def _expiry(at: str | None, in_s: float | None, now: dt.datetime) -> dt.datetime | None:
    if at is not None and in_s is not None:
        raise CommandRefusedError(
            "The expiry is given by --expires-at and by --expires-in. Use one of the two."
        )
    expiry = _time("--expires-at", at)
    if in_s is not None:
        try:
            expiry = now + dt.timedelta(seconds=in_s)
        except (OverflowError, ValueError):
            raise CommandRefusedError(f"--expires-in {in_s:g} leads to no date.") from None
    if expiry is not None and expiry <= now:
        raise CommandRefusedError(f"The expiry {expiry.isoformat()} is past. Choose a later one.")
    return expiry


def _awaited(new: NewReceipts, command_id: str, timeout_s: float, *, look_back: bool) -> Receipt | None:
    """Wait for the final receipt, and show on stderr what comes."""
    if stderr.is_terminal:
        with stderr.status("waiting for the job to read the command"):
            final = await_end(new, command_id, timeout_s, _show_receipt, look_back=look_back)
    else:
        final = await_end(new, command_id, timeout_s, _show_receipt, look_back=look_back)
    if final is None:
        stderr.print(
            f"No final receipt came within {timeout_s:g} s. The command stays sent: the job takes it when it runs. "
            f"See penstock control status {escaped(command_id)}.",
            soft_wrap=True,
        )
    return final


_COLOURS: Final = {"APPLIED": "green", "REJECTED": "red", "DEGRADED": "yellow"}


def _show_receipt(receipt: Receipt) -> None:
    _print_receipt(stderr.print, receipt)


def _print_receipt(show: Callable[..., None], receipt: Receipt) -> None:
    """One line for a receipt."""
    colour = _COLOURS.get(receipt.status, "default")
    parts = [_shown(receipt.at), f"[{colour}]{receipt.status:<9}[/]", f"batch {receipt.batch}"]
    if receipt.key_groups:
        parts.append(f"key groups {receipt.key_groups:,}, keys {receipt.keys:,}")
    if receipt.degraded:
        parts.append(f"degraded key groups {', '.join(map(str, receipt.degraded))}")
    if receipt.reason:
        parts.append(escaped(receipt.reason))
    show("  ".join(parts), soft_wrap=True)


def _show_story(story: Story) -> None:
    console = Console(highlight=False)
    last = story.last
    version = "" if last.version is None else f"  version {last.version}"
    title = f"{last.id}  {last.kind} {last.target}{version}  by {last.issued_by or '-'}"
    console.print(escaped(title), soft_wrap=True)
    for receipt in story.receipts:
        _print_receipt(console.print, receipt)
    if last.details:
        console.print(escaped(last.details), soft_wrap=True)


def _show_waiting(command_id: str, entry: ControlEntry, output: Output) -> None:
    """Say that a command was sent and has no receipt, if it was; CommandRefusedError when nothing is known of it."""
    command = find_waiting(command_id, entry)
    if command is None:
        looked = f" What waits in {entry.commands} is not looked through." if "://" in entry.commands else ""
        raise CommandRefusedError(
            f"The id {command_id!r} is unknown: no command with it has a receipt.{looked}"
        )
    if output is Output.json:
        _print_json({"id": command_id, "status": _SENT, "receipts": []})
    else:
        print(f"{command_id}: sent, no receipt yet")


def _table(stories: list[Story]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("time", "id", "kind", "target"):
        table.add_column(title, overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("issued by", overflow="fold")
    table.add_column("status", no_wrap=True)
    for title in ("batch", "key groups", "keys"):
        table.add_column(title, justify="right")
    table.add_column("reason", overflow="fold")
    for receipt in (story.last for story in stories):
        texts = (receipt.id, receipt.kind, receipt.target)
        table.add_row(
            _shown(receipt.at),
            *map(escaped, texts),
            "" if receipt.version is None else str(receipt.version),
            escaped(receipt.issued_by),
            f"[{_COLOURS.get(receipt.status, 'default')}]{receipt.status}[/]",
            str(receipt.batch),
            f"{receipt.key_groups:,}",
            f"{receipt.keys:,}",
            escaped(receipt.reason),
        )
    return table


def _shown(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)
