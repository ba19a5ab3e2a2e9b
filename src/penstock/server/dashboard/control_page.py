"""The page to control a job: a form that sends a command, its receipts as they arrive, and the history."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from nicegui import ui

from penstock.base.sizes import format_count
from penstock.commands.command_catalog import CommandCatalog, read_command_catalog
from penstock.commands.command_target import TARGET_FORMS
from penstock.commands.job_receipts import plain
from penstock.commands.payloads import Payload, payload_key
from penstock.commands.receipt_history import CommandHistory, find_history, find_newest_histories
from penstock.commands.receipt_segments import newest_mark
from penstock.commands.settings_in_force import settings_in_force
from penstock.control.commands import AT_ONCE, Apply
from penstock.control.receipts import FINAL
from penstock.server.api.access import Role
from penstock.server.api.commands import issue
from penstock.server.api.models import Command
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.cli_equivalents import SentControl
from penstock.server.dashboard.forms import WrongInputError, check_form
from penstock.server.dashboard.health import Level
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab

__all__ = [
    "CommandHelp",
    "HistoriesTail",
    "command_help",
    "command_of",
    "control",
    "history_row",
    "setting_rows",
]

_MAX_HISTORIES: Final = 200
_LEVELS: Final = {
    "APPLIED": (Level.GOOD, "check_circle"),
    "REJECTED": (Level.BAD, "block"),
    "DEGRADED": (Level.WARNING, "warning"),
    "SENT": (Level.BUSY, "outbox"),
}
# How targets are written, by scope.
_FORMS: Final = {"key": ("{}/KEY",), "keys": ("{}/KEY,KEY",), "all": ("{}/*",), "step": ("{}",)}
_UNDER_WAY: Final = (Level.BUSY, "pending")


@dataclass(frozen=True)
class _Control:
    """The commands that a job accepts, those that it has read, newest first, and its settings."""

    entry: CommandCatalog
    histories: list[CommandHistory]
    settings: dict[str, dict[str, Any]]


class HistoriesTail:
    """The newest commands of a job, which are read again only if there are new receipts."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint: Final = checkpoint
        self._mark = (0, 0)
        self._known: list[CommandHistory] = []

    def read(self) -> list[CommandHistory]:
        """Return the commands, newest first."""
        mark = newest_mark(self._checkpoint)
        if mark != self._mark:
            self._mark = mark
            self._known = find_newest_histories(self._checkpoint, lambda _: True, _MAX_HISTORIES)[::-1]
        return self._known


def command_of(said: SentControl, now: dt.datetime) -> Command:
    """Return the command in a form. Raises WrongInputError if it is invalid."""
    try:
        payload = json.loads(said.payload) if said.payload else None
    except ValueError as e:
        raise WrongInputError(f"The payload is not JSON: {e}.") from None
    expires_at = None if said.expires_in_s is None else now + dt.timedelta(seconds=said.expires_in_s)
    values = {
        "kind": said.kind,
        "target": said.target,
        "payload": payload,
        "version": said.version,
        "apply": said.apply,
    }
    return check_form(Command, {**values, "expires_at": expires_at})


def history_row(history: CommandHistory) -> dict[str, Any]:
    """Return a command as a row of the table."""
    last = history.last
    level, icon = _LEVELS.get(last.status, _UNDER_WAY)
    return {
        "key": f"{last.batch} {last.id}",
        "at": f"{last.at:%Y-%m-%d %H:%M:%S}",
        "command": last.id,
        "kind": last.kind,
        "target": last.target,
        "version": "" if last.version is None else last.version,
        "who": last.issued_by,
        "level": str(level),
        "icon": icon,
        "health": last.status,
        "why": last.reason,
        "keys": last.keys,
    }


@dataclass(frozen=True)
class CommandHelp:
    """Help on a kind of command: a description, an example of its payload, and its possible targets."""

    text: str
    example: str
    targets: tuple[str, ...]


def command_help(entry: CommandCatalog, said: SentControl) -> CommandHelp | None:
    """Return help on the command entered so far; None if no step accepts its kind."""
    takers = {name: step for name, step in entry.steps.items() if said.kind in step.kinds}
    if not takers:
        return None
    targets: list[str] = []
    for name, step in takers.items():
        targets += [form.format(name) for scope in step.kinds[said.kind] for form in _FORMS.get(scope, ())]
    if any("job" in step.kinds[said.kind] for step in takers.values()):
        targets.append("*")
    name = said.target.partition("/")[0]
    step = takers.get(name) or next(iter(takers.values()))
    is_for_step = said.target == name or set(step.kinds[said.kind]) == {"step"}
    payload = step.payloads.get(payload_key(said.kind, "step" if is_for_step and name in takers else "key"))
    # If a step has no states, the payload is only for its settings, and vice versa.
    payload = payload or step.payloads.get(payload_key(said.kind, "step")) or Payload("", "")
    words = f"Payload: {payload.type}" if payload.type else "No payload"
    return CommandHelp(f"For {', '.join(targets)}. {words}.", payload.example, tuple(targets))


def setting_rows(settings: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings in force as rows of the table."""
    return [
        {
            "key": f"{step} {name}",
            "step": step,
            "setting": name,
            "value": json.dumps(value, ensure_ascii=False),
        }
        for step, found in settings.items()
        for name, value in found.items()
    ]


@job_tab("control", "Control", icon="tune", role=Role.VIEWER)
def control(visit: JobVisit) -> None:
    """Build the page to control a job."""
    _ControlPage(visit)


class _ControlPage:
    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        self._entry: CommandCatalog | None = None
        self._followed: str | None = None
        self._example = ""
        with ui.element("div").classes("p-columns"):
            with components.card("Send a command"), ui.element("div").classes("p-body"):
                self._form()
            with (
                components.card("Receipts", about="of the command sent here or chosen below"),
                ui.element("div").classes("p-body"),
            ):
                self._receipts()
        with components.card("Settings", about="in force now; change them with set") as self._settings_card:
            self._settings = components.Table(
                [
                    components.Column("step", "Step"),
                    components.Column("setting", "Setting"),
                    components.Column("value", "Value", slot=components.WRAP_SLOT),
                ],
                key="key",
                page_rows=0,
            )
        with components.card("History", about="newest commands that the job has read"):
            self._table = components.Table(
                [
                    components.Column("at", "Time (UTC)"),
                    components.Column("health", "Status", slot=components.HEALTH_SLOT, sort="health"),
                    components.Column("kind", "Kind"),
                    components.Column("target", "Target", slot=components.WRAP_SLOT),
                    components.Column("version", "Version", number=True),
                    components.Column("keys", "Keys", number=True),
                    components.Column("who", "Who"),
                    components.Column("command", "Id", slot=components.CHOOSE_SLOT.format(field="command")),
                ],
                key="key",
                page_rows=20,
                nothing="No commands yet",
            )
            self._table.on_choose(self._follow)
        components.cli_equivalent(cli_equivalents.show_commands(visit.job_id))
        visit.poll(self._read, self._show, key=("control", visit.job_id))

    # Commands and settings

    def _read(self) -> _Control:
        job_id = self._visit.job_id
        checkpoint = self._visit.service.checkpoint(job_id)
        tail = self._visit.readings.keep(("histories", job_id), lambda: HistoriesTail(checkpoint))
        return _Control(read_command_catalog(checkpoint), tail.read(), settings_in_force(checkpoint))

    def _show(self, found: _Control) -> None:
        if found.entry != self._entry:
            self._entry = found.entry
            kinds = {kind: None for step in found.entry.steps.values() for kind in step.kinds}
            self._kind.set_options(sorted(kinds), value=self._kind.value)
            self._update_help()
        self._table.show([history_row(history) for history in found.histories])
        self._settings_card.set_visibility(bool(found.settings))
        self._settings.show(setting_rows(found.settings))

    # The form

    def _form(self) -> None:
        with ui.element("form").classes("p-form") as form:
            form.on("submit.prevent", self._send)
            self._kind = ui.select([], label="Kind", with_input=True, new_value_mode="add-unique")
            self._target = ui.input("Target", value="*").tooltip(TARGET_FORMS)
            self._payload = ui.textarea("Payload (JSON)", placeholder='{"desired": 21.5}').props(
                "rows=4 autogrow"
            )
            self._help = ui.label("").classes("p-muted").props("id=about-command aria-live=polite")
            self._payload.props("aria-describedby=about-command")
            self._take = ui.button("Use the example", color=None, on_click=self._take_example)
            self._take.props("no-caps flat dense").classes("p-button p-plain")
            self._take.set_visibility(False)
            with ui.element("div").classes("p-row"):
                self._version = ui.number("Version", min=0, precision=0)
                self._expires = ui.number("Expires in seconds", min=1, precision=0)
                self._apply = ui.select(list(get_args(Apply)), label="In real time", value=AT_ONCE)
            fields = (self._kind, self._target, self._payload, self._version, self._expires, self._apply)
            for field in fields:
                field.props("outlined dense").on_value_change(self._update_cli)
            for field in (self._kind, self._target):
                field.on_value_change(self._update_help)
            button = components.action_button(self._visit, "Send", "send", Role.OPERATOR, None, primary=True)
            button.props("type=submit")
        self._cli = components.cli_equivalent("")
        self._update_cli()

    def _read_form(self) -> SentControl:
        return SentControl(
            kind=self._kind.value or "",
            target=(self._target.value or "*").strip(),
            payload=(self._payload.value or "").strip() or None,
            version=None if self._version.value is None else int(self._version.value),
            expires_in_s=None if self._expires.value is None else int(self._expires.value),
            apply=self._apply.value,
        )

    def _update_cli(self) -> None:
        self._cli.set_text(cli_equivalents.send_control(self._visit.job_id, self._read_form()))

    def _update_help(self) -> None:
        """Show the targets and the payload of the chosen kind, with an example."""
        found = None if self._entry is None else command_help(self._entry, self._read_form())
        self._help.set_text("" if found is None else found.text)
        self._example = "" if found is None else found.example
        self._take.set_visibility(bool(self._example))
        self._payload.props(f"placeholder={json.dumps(self._example)}")
        steps = () if self._entry is None else self._entry.steps
        every = ["*", *steps, *(f"{step}/*" for step in steps)]
        self._target.set_autocomplete(every if found is None else list(found.targets))

    def _take_example(self) -> None:
        self._payload.set_value(self._example)

    async def _send(self) -> None:
        said, visit = self._read_form(), self._visit
        sent = await visit.act(
            Role.OPERATOR,
            lambda who: issue(visit.service, visit.job_id, command_of(said, dt.datetime.now(dt.UTC)), who),
        )
        if sent is not None:
            ui.notify(f"The command {sent.kind} for {sent.target} was sent", type="positive")
            self._follow(sent.id)

    # Receipts

    def _receipts(self) -> None:
        self._of = ui.label("Send a command, or choose one below.").classes("p-muted")
        self._list = ui.element("ol").classes("p-receipts").props('aria-live=polite aria-label="Receipts"')

        def read() -> tuple[str | None, CommandHistory | None]:
            wanted = self._followed
            if wanted is None:
                return None, None
            return wanted, find_history(self._visit.service.checkpoint(self._visit.job_id), wanted)

        self._timer = self._visit.poll(read, self._show_history, every_s=0.5)
        self._timer.deactivate()

    def _follow(self, command_id: str) -> None:
        self._followed = command_id
        self._of.set_text(f"Command {command_id}")
        self._show_receipts([{"status": "SENT", "at": "", "reason": "Not read by the job yet."}])
        self._timer.activate()

    def _show_history(self, found: tuple[str | None, CommandHistory | None]) -> None:
        command_id, history = found
        if history is None or command_id != self._followed:
            return
        self._show_receipts([plain(receipt) for receipt in history.receipts])
        if history.last.status in FINAL:
            self._timer.deactivate()

    def _show_receipts(self, receipts: list[dict[str, Any]]) -> None:
        self._list.clear()
        with self._list:
            for receipt in receipts:
                level, icon = _LEVELS.get(receipt["status"], _UNDER_WAY)
                with ui.element("li").classes("p-receipt"):
                    with ui.element("span").classes(f"p-health p-{level}"):
                        ui.icon(icon).props("aria-hidden=true")
                        ui.label(receipt["status"])
                    ui.label(_about(receipt)).classes("p-muted")
                    if receipt.get("details") is not None:
                        components.text(json.dumps(receipt["details"], indent=1), "pre").classes("p-detail")


def _about(receipt: dict[str, Any]) -> str:
    parts = []
    if receipt.get("batch") is not None:
        parts.append(f"in micro-batch {receipt['batch']}")
    if receipt.get("keys"):
        parts.append(format_count(receipt["keys"], "keys"))
    if receipt.get("degraded"):
        parts.append(f"key groups {', '.join(map(str, receipt['degraded']))} failed")
    if receipt.get("reason"):
        parts.append(receipt["reason"])
    return " · ".join(parts)
