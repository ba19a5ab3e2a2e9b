"""The page with the models of a job: versions, how they compare, charts over time, and buttons that change them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from nicegui import ui

from penstock.commands.listed_models import ListedModel, ListedVersion
from penstock.server.api.access import Role
from penstock.server.api.commands import issue
from penstock.server.api.models import Command
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.cli_equivalents import SentControl
from penstock.server.dashboard.display_texts import amount
from penstock.server.dashboard.forms import check_form
from penstock.server.dashboard.health import Level
from penstock.server.dashboard.live_charts import WINDOWS, show_charts
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.dashboard.series import model_charts

__all__ = ["examination_text", "models", "policy_text", "version_rows"]

_LEVELS: Final = {
    "SERVING": (Level.GOOD, "check_circle"),
    "CANARY": (Level.BUSY, "call_split"),
    "SHADOW": (Level.BUSY, "visibility"),
}
_AT_REST: Final = (Level.IDLE, "circle")


def version_rows(found: list[ListedModel]) -> list[dict[str, Any]]:
    """Return the versions of all models as rows of the table."""
    return [_version_row(model, version) for model in found for version in model.versions]


def _version_row(model: ListedModel, version: ListedVersion) -> dict[str, Any]:
    level, icon = _LEVELS.get(version.status, _AT_REST)
    seen = version.recent or version
    share = "" if version.share is None else f" {version.share:.0%}"
    pinned = f" +{version.pinned} pinned" if version.pinned else ""
    return {
        "name": f"{model.step} / {model.model} / {version.version}",
        "level": str(level),
        "icon": icon,
        "health": version.status,
        "why": f"{share}{pinned}".strip(),
        "records": amount(version.records),
        "failures": amount(version.failures),
        "slow": amount(version.slow),
        "ms": _number(seen.ms, ".2f"),
        "agreement": _number(seen.agreement, ".1%"),
        "drift": _number(seen.drift, ".3f"),
        "ks": _number(seen.ks, ".3f"),
        "who": version.changed_by,
    }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def policy_text(policy: dict[str, Any] | None) -> str:
    """Describe the bounds of a policy that count."""
    bounds = {name: value for name, value in (policy or {}).items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in bounds.items()) or "none"


def examination_text(version: ListedVersion) -> str:
    """Say why a version cannot be validated yet; empty if it can be, or was."""
    if version.is_examined or version.status != "REGISTERED":
        return ""
    if version.failure is not None:
        return f" It could not be fetched: {version.failure}. Validate tries it again."
    return " It is not examined yet; validate it when it is."


@dataclass(frozen=True)
class _Chosen:
    """A version that was chosen in the table."""

    step: str
    model: str
    version: str


@job_tab("models", "Models", icon="model_training", role=Role.VIEWER)
def models(visit: JobVisit) -> None:
    """Build the page with the models of a job."""
    _ModelsPage(visit)


class _ModelsPage:
    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        self._found: list[ListedModel] = []
        self._chosen: _Chosen | None = None
        with components.card("Versions", about="of the models that the steps declare"):
            self._table = components.Table(
                [
                    components.Column("name", "Version", slot=components.CHOOSE_SLOT.format(field="name")),
                    components.Column("health", "Status", slot=components.HEALTH_SLOT, sort="health"),
                    components.Column("records", "Records", number=True),
                    components.Column("failures", "Failures", number=True),
                    components.Column("slow", "Slow", number=True),
                    components.Column("ms", "ms/1000", number=True),
                    components.Column("agreement", "Agreement", number=True),
                    components.Column("drift", "Drift", number=True),
                    components.Column("ks", "KS", number=True),
                    components.Column("who", "Changed by"),
                ],
                key="name",
                page_rows=20,
                nothing="No versions. Load one with penstock models load.",
            )
            self._table.on_choose(self._choose)
        with components.card("Change a version", about="chosen above") as self._card:
            self._build_actions()
        self._card.set_visibility(False)
        with ui.element("div").classes("p-toolbar"):
            window = ui.toggle(WINDOWS, value=min(WINDOWS)).props(
                'no-caps unelevated aria-label="Time window"'
            )
            window.classes("p-toggle")
            ui.element("div").classes("p-space")
            ui.label("Within the window of the policy; times are in UTC").classes("p-muted p-small")
        show_charts(visit, lambda: float(window.value), of=model_charts)
        components.cli_equivalent(cli_equivalents.list_models(visit.job_id))
        visit.poll(
            lambda: visit.service.reader.models(visit.job_id), self._show, key=("models", visit.job_id)
        )

    def _build_actions(self) -> None:
        with ui.element("div").classes("p-body"):
            self._about = ui.label("").classes("p-muted").props("aria-live=polite")
            self._policy = ui.label("").classes("p-muted")
            with ui.element("div").classes("p-row"):
                self._share = ui.number("Share of a canary", value=0.1, min=0.01, max=1, step=0.05)
                self._reason = ui.input("Reason for a rollback")
                for field in (self._share, self._reason):
                    field.props("outlined dense")
            with ui.element("div").classes("p-actions"):
                for label, icon, kind in (
                    ("Validate", "fact_check", "validate-model"),
                    ("Shadow", "visibility", "shadow-model"),
                    ("Canary", "call_split", "canary-model"),
                    ("Promote", "upgrade", "promote-model"),
                ):
                    components.action_button(self._visit, label, icon, Role.OPERATOR, self._sender(kind))
                for label, icon, kind in (
                    ("Roll back", "undo", "roll-back-model"),
                    ("Retire", "archive", "retire-model"),
                    ("Remove", "delete", "remove-model"),
                ):
                    components.action_button(
                        self._visit, label, icon, Role.OPERATOR, self._sender(kind), danger=True
                    )

    def _show(self, found: list[ListedModel]) -> None:
        self._found = found
        self._table.show(version_rows(found))
        self._describe()

    def _choose(self, name: str) -> None:
        self._chosen = _Chosen(*name.split(" / "))
        self._describe()
        self._card.set_visibility(True)

    def _describe(self) -> None:
        chosen = self._chosen
        for model in self._found:
            if chosen is None or (model.step, model.model) != (chosen.step, chosen.model):
                continue
            for version in model.versions:
                if version.version == chosen.version:
                    self._about.set_text(
                        f"{chosen.model} {version.version} of {chosen.step} is {version.status}: {version.format} from "
                        f"{version.uri}, changed by {version.changed_by or 'nobody'}.{examination_text(version)}"
                    )
            self._policy.set_text(f"Policy: {policy_text(model.policy)}.")

    def _sender(self, kind: str) -> Callable[[], Awaitable[None]]:
        async def send() -> None:
            await self._send(kind)

        return send

    async def _send(self, kind: str) -> None:
        chosen, visit = self._chosen, self._visit
        if chosen is None:
            return
        payload: dict[str, Any] = {"model": chosen.model, "version": chosen.version}
        if kind == "canary-model":
            payload["share"] = self._share.value
        if kind == "roll-back-model" and self._reason.value:
            payload["reason"] = self._reason.value
        said = SentControl(kind, chosen.step, json.dumps(payload))
        if not await components.ask(
            f"{kind.removesuffix('-model').replace('-', ' ').capitalize()} this version?",
            "It takes effect at one cut, in all tasks. The receipt is on the page Control.",
            command=cli_equivalents.send_control(visit.job_id, said),
            confirm="Send the command",
            target=f"{chosen.step} / {chosen.model} / {chosen.version}",
            danger=kind in ("roll-back-model", "retire-model", "remove-model"),
        ):
            return
        sent = await visit.act(
            Role.OPERATOR,
            lambda who: issue(
                visit.service,
                visit.job_id,
                check_form(Command, {"kind": kind, "target": chosen.step, "payload": payload}),
                who,
            ),
        )
        if sent is not None:
            ui.notify(f"The command {sent.kind} for {chosen.version} was sent", type="positive")
