"""Sent commands: send the command of a verb to a job, wait for its end, and show its receipts."""

from __future__ import annotations

import datetime as dt
import socket
import uuid
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.job_target import CommandDraft, JobTarget, Patience
from penstock.cli.output import Output, escape, print_json, stderr
from penstock.cli.times import format_instant
from penstock.commands.job_receipts import plain
from penstock.control.commands import AT_ONCE
from penstock.control.receipts import Receipt
from penstock.jobs.events import user_name

__all__ = [
    "CODES",
    "COLOURS",
    "NOT_SENT_CODE",
    "WaitOption",
    "new_draft",
    "print_receipt",
    "send_and_wait",
    "sender_name",
]

NOT_SENT_CODE: Final = 1
"""The exit code for a command that was not sent."""

CODES: Final = {"APPLIED": 0, "REJECTED": 3, "DEGRADED": 4}
"""The exit codes for final receipts."""

COLOURS: Final = {"APPLIED": "green", "REJECTED": "red", "DEGRADED": "yellow"}
"""The colours of final receipts."""

_TIMED_OUT_CODE: Final = 5

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it is applied or rejected.")]


def new_draft(kind: str, target: str, payload: msgspec.Raw) -> CommandDraft:
    """Return a command of this moment, from the user of this process."""
    return CommandDraft(
        kind=kind,
        target=target,
        keys=None,
        payload=payload,
        id=None,
        new_id=uuid.uuid4().hex,
        issued_by=sender_name(),
        issued_at=dt.datetime.now(dt.UTC),
        version=None,
        effective_at=None,
        expires_at=None,
        apply=AT_ONCE,
        commands_uri=None,
    )


def send_and_wait(receiver: JobTarget, draft: CommandDraft, patience: Patience, output: Output) -> None:
    """Send a command and print its id; wait for its end if that is wanted. Raises Exit with the exit code then."""
    sent = receiver.send(draft)
    if output is Output.text:
        print(sent["id"], flush=True)
    if not patience.wait:
        if output is Output.json:
            print_json(sent)
        return
    final = _await_final(receiver, sent["id"], patience.timeout_s)
    if output is Output.json:
        print_json(sent if final is None else plain(final))
    elif final is not None and final.details:
        # The replies of handlers, or the answers to a trace.
        print(final.details, flush=True)
    raise typer.Exit(_TIMED_OUT_CODE if final is None else CODES[final.status])


def sender_name() -> str:
    """Return the name of this process's user in receipts."""
    return f"{user_name()}@{socket.gethostname()}"


def _await_final(receiver: JobTarget, command_id: str, timeout_s: float) -> Receipt | None:
    """Wait for the final receipt, and show each receipt on stderr."""
    if stderr.is_terminal:
        with stderr.status("Waiting for the job to read the command"):
            final = receiver.await_final(command_id, timeout_s, _show_receipt)
    else:
        final = receiver.await_final(command_id, timeout_s, _show_receipt)
    if final is None:
        stderr.print(
            f"No final receipt came within {timeout_s:g} s. The command stays sent: the job takes it when it runs. "
            f"See penstock control status {escape(command_id)}.",
            soft_wrap=True,
        )
    return final


def _show_receipt(receipt: Receipt) -> None:
    print_receipt(stderr.print, receipt)


def print_receipt(show: Callable[..., None], receipt: Receipt) -> None:
    """Print a receipt as one line."""
    colour = COLOURS.get(receipt.status, "default")
    parts = [format_instant(receipt.at), f"[{colour}]{receipt.status:<9}[/]", f"batch {receipt.batch}"]
    if receipt.apply != AT_ONCE:
        parts.append(receipt.apply)
    if receipt.key_groups:
        parts.append(f"key groups {receipt.key_groups:,}, keys {receipt.keys:,}")
    if receipt.degraded:
        parts.append(f"degraded key groups {', '.join(map(str, receipt.degraded))}")
    if receipt.reason:
        parts.append(escape(receipt.reason))
    show("  ".join(parts), soft_wrap=True)
