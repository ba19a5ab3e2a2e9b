"""The panel in which a user queries the state of a job: a text field, and a table of the result."""

from __future__ import annotations

import json
from typing import Any, Final

from nicegui import ui

from penstock.errors import PenstockError
from penstock.queries.locked_engine import QueryLimits
from penstock.queries.query_answers import AnswerContent
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.page_session import JobVisit

__all__ = ["QueryPanel", "answer_rows"]

_LIMITS: Final = QueryLimits(seconds=10.0, rows=500)
_LONGEST_CELL: Final = 160
_EXAMPLE: Final = "SELECT count(*) FROM state.STEP"


def answer_rows(content: AnswerContent) -> list[dict[str, Any]]:
    """Return the rows of an answer for the table. Their columns are the fields c0, c1 and so on."""
    return [
        {"row": number, **{f"c{place}": _cell(value) for place, value in enumerate(row.values())}}
        for number, row in enumerate(content.rows)
    ]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]} ..."


class QueryPanel:
    """The panel of a job. Only users who may see the contents of records get it."""

    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        with components.card("Query", about="in SQL, after the newest committed micro-batch"):
            with ui.element("div").classes("p-body"):
                with ui.element("form").classes("p-keys") as form:
                    form.on("submit.prevent", self._ask)
                    self._sql = ui.textarea("SQL", placeholder=_EXAMPLE).props("outlined dense autogrow")
                    self._sql.classes("full-width").on_value_change(self._update_cli)
                    self._button = components.action_button(
                        visit, "Run the query", "play_arrow", Role.OPERATOR, None, primary=True
                    )
                    self._button.props("type=submit")
                self._told = components.text("", "pre").classes("p-detail p-whole")
                self._told.props('role=log aria-label="Result of the query"')
            self._place = ui.element("div")
            with ui.element("div").classes("p-body"):
                self._cli = components.cli_equivalent("")
        self._update_cli()

    def _update_cli(self) -> None:
        self._cli.set_text(cli_equivalents.query_state(self._visit.job_id, self._sql.value or _EXAMPLE))

    async def _ask(self) -> None:
        sql = self._sql.value
        if not sql:
            return

        def ask(_: str) -> AnswerContent | PenstockError:
            try:
                return self._visit.service.reader.query(self._visit.job_id, sql, _LIMITS)
            except PenstockError as e:
                return e

        self._button.disable()
        self._told.set_text("Reading the state ...")
        found = await self._visit.act(Role.OPERATOR, ask)
        self._button.enable()
        self._place.clear()
        if found is None:
            self._told.set_text("The query was not answered.")
        elif isinstance(found, PenstockError):
            self._told.set_text(str(found))
        else:
            self._show(found)

    def _show(self, found: AnswerContent) -> None:
        count = "1 row" if len(found.rows) == 1 else f"{len(found.rows)} rows"
        self._told.set_text(f"{count} after micro-batch {found.batch}.")
        with self._place:
            table = components.Table(
                [components.Column(f"c{place}", column.name) for place, column in enumerate(found.columns)],
                key="row",
                page_rows=25,
                nothing="No rows",
            )
        table.show(answer_rows(found))
