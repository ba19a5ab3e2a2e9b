"""The page with savepoints: their content, and buttons to start a job from one or to delete it."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from penstock.base.sizes import format_bytes
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import amount
from penstock.server.dashboard.forms import equivalent_of, submit_job
from penstock.server.dashboard.page_session import Visit
from penstock.server.dashboard.registry import page
from penstock.server.service.job_resources import Savepoint, SavepointDetails

__all__ = ["savepoint_row", "savepoints"]


@page("/savepoints", "Savepoints", icon="bookmarks", role=Role.VIEWER)
def savepoints(visit: Visit) -> None:
    """Build the page with the savepoints of all jobs."""
    _SavepointsPage(visit)


def savepoint_row(found: Savepoint) -> dict[str, Any]:
    """Return a savepoint as a row of the table."""
    taken = (found.created_at or "").replace("T", " ").removesuffix("+00:00")
    return {"id": found.id, "job": found.job_name, "batch": found.batch, "taken": taken}


class _SavepointsPage:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._seen: SavepointDetails | None = None
        components.heading("Savepoints")
        with components.card("", about=""):
            self._table = components.Table(
                [
                    components.Column("id", "Savepoint", slot=components.CHOOSE_SLOT.format(field="id")),
                    components.Column("job", "Job"),
                    components.Column("batch", "After micro-batch", number=True),
                    components.Column("taken", "Taken (UTC)"),
                ],
                key="id",
                page_rows=20,
                nothing="No savepoints. Take one on the page of a job.",
            )
            self._table.on_choose(self._choose)
        with components.card("Contents", about="of the savepoint chosen above") as self._card:
            with ui.element("div").classes("p-body"):
                self._about = ui.label("").classes("p-muted")
                with ui.element("div").classes("p-actions"):
                    components.action_button(
                        visit, "Start a job from it", "play_arrow", Role.OPERATOR, self._submit, primary=True
                    )
                    components.action_button(visit, "Delete", "delete", Role.ADMIN, self._delete, danger=True)
            self._tables = components.Table(
                [
                    components.Column("step", "Step"),
                    components.Column("name", "State"),
                    components.Column("kind", "Kind"),
                    components.Column("rows", "Rows", number=True),
                    components.Column("size", "Size", number=True),
                ],
                key="row",
                page_rows=0,
                nothing="It has no state",
            )
        self._card.set_visibility(False)
        components.cli_equivalent(cli_equivalents.list_savepoints("JOB"))
        visit.poll(visit.service.savepoints, self._show, key="savepoints", every_s=2.0)

    def _show(self, found: list[Savepoint]) -> None:
        self._table.show([savepoint_row(one) for one in sorted(found, key=lambda one: one.id, reverse=True)])
        if self._seen is not None and self._seen.id not in {one.id for one in found}:
            self._card.set_visibility(False)
            self._seen = None

    async def _choose(self, savepoint_id: str) -> None:
        found = await self._visit.act(
            Role.VIEWER, lambda _: self._visit.service.savepoint_details(savepoint_id)
        )
        if found is None:
            return
        self._seen = found
        used = f" Job {found.used_by[0]} started from it." if found.used_by else ""
        self._about.set_text(
            f"{found.id}: the state of {found.job_name} after micro-batch {found.batch}, {amount(found.rows)} rows, "
            f"{format_bytes(found.bytes)}.{used}"
        )
        self._tables.show(
            [
                {
                    "row": table.name,
                    "step": table.step,
                    "name": table.name.removeprefix(f"{table.step}/").removeprefix("@"),
                    "kind": table.kind,
                    "rows": amount(table.rows),
                    "size": format_bytes(table.bytes),
                }
                for table in found.tables
            ]
        )
        self._card.set_visibility(True)

    async def _delete(self) -> None:
        seen = self._seen
        if seen is None:
            return
        if await components.ask(
            "Delete this savepoint?",
            "This cannot be undone. No job can start from it anymore.",
            command=cli_equivalents.delete_savepoint("JOB", seen.id),
            confirm="Delete the savepoint",
            target=f"{seen.id} ({seen.job_name}, micro-batch {seen.batch})",
        ):
            await self._visit.act(Role.ADMIN, lambda who: self._visit.service.delete_savepoint(seen.id, who))

    async def _submit(self) -> None:
        seen = self._seen
        known = await self._visit.act(Role.OPERATOR, lambda _: self._visit.service.definitions())
        if seen is None or known is None:
            return
        ids = [one.id for one in known.items]
        like = next((one.id for one in known.items if seen.job_name in (one.id, one.name)), None)
        with components.form_dialog("Start a job from this savepoint?") as dialog:
            ui.label("A new job continues from the savepoint, with its own checkpoint.").classes(
                "p-dialog-text"
            )
            components.name_target(f"{seen.id} ({seen.job_name}, micro-batch {seen.batch})")
            chosen = ui.select(ids, label="Definition", value=like or next(iter(ids), None))
            chosen.props("outlined dense")
            components.end_form(
                dialog,
                "Submit",
                [chosen],
                lambda: {"definition": chosen.value, "from_savepoint": seen.id},
                equivalent_of,
            )
        await submit_job(self._visit, await components.answer_of(dialog))
