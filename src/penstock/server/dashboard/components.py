"""Components that pages share: cards, tables, buttons, the equivalent commands, and dialogs."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement
from nicegui.elements.mixins.value_element import ValueElement

from penstock.server.api.access import Role
from penstock.server.api.guard import DASHBOARD
from penstock.server.dashboard.page_session import Visit

__all__ = [
    "CHOOSE_SLOT",
    "HEALTH_SLOT",
    "JOB_SLOT",
    "WRAP_SLOT",
    "Column",
    "Table",
    "Tiles",
    "action_button",
    "answer_of",
    "ask",
    "card",
    "cli_equivalent",
    "command_line",
    "empty",
    "end_form",
    "form_dialog",
    "heading",
    "name_target",
    "set_text",
    "text",
]

_COPY: Final = "(e) => window.penstock.copy(e)"


@contextlib.contextmanager
def card(title: str, *, about: str = "") -> Iterator[ui.element]:
    """Build a card with a heading, and yield it."""
    with ui.element("section").classes("p-card") as made:
        if title:
            with ui.element("div").classes("p-card-head"):
                text(title, "h2").classes("p-card-title")
                if about:
                    ui.label(about).classes("p-muted")
        yield made


def text(content: str, tag: str = "div") -> TextElement:
    """Build an element with a tag and a text."""
    return TextElement(tag=tag, text=content)


def heading(title: str) -> None:
    """Build the heading of a page."""
    text(title, "h1").classes("p-title")


def command_line(command: str) -> TextElement:
    """Build a terminal command with a button that copies it. `set_text` on the result changes it."""
    with ui.element("div").classes("p-command"):
        ui.label("$").classes("p-prompt").props("aria-hidden=true")
        shown = text(command, "code").classes("p-command-text")
        copy = ui.button(icon="content_copy", color=None).props('flat dense round size=sm aria-label="Copy"')
        copy.on("click", js_handler=_COPY)
    return shown


def action_button(
    visit: Visit,
    label: str,
    icon: str,
    role: Role,
    act: Callable[[], Awaitable[object]] | None,
    *,
    primary: bool = False,
    danger: bool = False,
) -> ui.button:
    """Build a button for users with a role. For other users it is disabled, and its tooltip says why."""
    made = (
        ui.button(label, icon=icon, on_click=act, color=None).props("no-caps unelevated").classes("p-button")
    )
    if danger:
        made.classes("p-danger")
    elif not primary:
        made.classes("p-plain")
    if not visit.may(role):
        made.disable()
        made.props(f'title="This needs the role {role}"')
    return made


async def ask(
    title: str, about: str, *, command: str, confirm: str, target: str, danger: bool = True
) -> bool:
    """Ask for confirmation and return the answer. The dialog names the target; Escape and the first button mean no."""
    with _dialog(title) as dialog:
        ui.label(about).classes("p-dialog-text")
        name_target(target)
        cli_equivalent(command)
        with ui.element("div").classes("p-dialog-buttons"):
            ui.button("Keep as it is", on_click=dialog.close, color=None).props(
                "no-caps flat autofocus"
            ).classes("p-button p-plain")
            sure = ui.button(confirm, on_click=lambda: dialog.submit(True), color=None).props(
                "no-caps unelevated"
            )
            sure.classes("p-button p-danger" if danger else "p-button")
    return await answer_of(dialog) is True


async def answer_of(dialog: ui.dialog) -> Any:
    """Await what was submitted in a dialog, and delete it. None if it was closed."""
    answer = await dialog
    dialog.delete()
    return answer


def name_target(target: str) -> None:
    """Build the line of a dialog that names its target."""
    text(target, "code").classes("p-target")


@contextlib.contextmanager
def form_dialog(title: str) -> Iterator[ui.dialog]:
    """Build a dialog with a form, and yield it. The caller adds fields and then `end_form`, and awaits its answer."""
    with _dialog(title) as dialog, ui.element("form").classes("p-form"):
        yield dialog


def end_form(
    dialog: ui.dialog,
    confirm: str,
    fields: Iterable[ValueElement[Any]],
    values: Callable[[], Any],
    command: Callable[[Any], str],
) -> None:
    """Build the end of a form: the command that is equivalent to its values, which follows the fields, and buttons.

    One button closes the dialog, the other submits the values, as Enter does.
    """
    line = cli_equivalent(command(values()))
    for field in fields:
        field.on_value_change(lambda: line.set_text(command(values())))
    ui.context.slot.parent.on("submit.prevent", lambda: dialog.submit(values()))
    with ui.element("div").classes("p-dialog-buttons"):
        ui.button("Close", on_click=dialog.close, color=None).props("no-caps flat type=button").classes(
            "p-button p-plain"
        )
        ui.button(confirm, color=None).props("no-caps unelevated type=submit").classes("p-button")


def cli_equivalent(command: str) -> TextElement:
    """Build the line with the equivalent terminal command, with a label."""
    with ui.element("div").classes("p-same"):
        ui.label("On a terminal").classes("p-muted p-small")
        return command_line(command)


@contextlib.contextmanager
def _dialog(title: str) -> Iterator[ui.dialog]:
    with ui.dialog() as dialog, ui.element("div").classes("p-dialog"):
        dialog.props(f'aria-label="{_attribute(title)}"')
        text(title, "h2").classes("p-dialog-title")
        yield dialog


def _attribute(content: str) -> str:
    return content.replace("\\", "").replace('"', "'")


class Tiles:
    """A row of numbers, each with its title."""

    def __init__(self, **titles: str) -> None:
        self._numbers: Final[dict[str, TextElement]] = {}
        with ui.element("div").classes("p-tiles"):
            for name, title in titles.items():
                with ui.element("div").classes("p-tile"):
                    ui.label(title).classes("p-muted p-small")
                    self._numbers[name] = text("-").classes("p-number")

    def show(self, **numbers: str) -> None:
        """Show numbers by name."""
        for name, number in numbers.items():
            set_text(self._numbers[name], number)


def set_text(shown: TextElement, content: str) -> None:
    """Set a text only if it differs, so that otherwise nothing is sent to the browser."""
    if shown.text != content:
        shown.set_text(content)


def empty(icon: str, about: str) -> ui.element:
    """Build a placeholder for missing content."""
    with ui.element("div").classes("p-empty") as made:
        ui.icon(icon).props("aria-hidden=true")
        ui.label(about)
    return made


@dataclass(frozen=True)
class Column:
    """A column of a table: the field of its rows, and its heading. `slot` is a template for its cells.

    A template is a constant of this program, and accesses the row as `props.row`.
    """

    field: str
    title: str
    number: bool = False
    slot: str | None = None
    sort: str | None = None


class Table:
    """A table that is updated only when its rows change."""

    def __init__(
        self, columns: Sequence[Column], *, key: str, page_rows: int = 50, nothing: str = "Nothing yet"
    ) -> None:
        self._table: Final = ui.table(
            columns=[
                {
                    "name": column.field,
                    "field": column.sort or column.field,
                    "label": column.title,
                    "align": "right" if column.number else "left",
                    "sortable": column.sort is not None or column.slot is None,
                }
                for column in columns
            ],
            rows=[],
            row_key=key,
            pagination={"rowsPerPage": page_rows},
        )
        self._table.classes("p-table").props(
            f'flat hide-selected-banner no-data-label="{_attribute(nothing)}"'
        )
        self._page_rows: Final = page_rows
        self._table.props("hide-pagination")
        for column in columns:
            if column.slot is not None:
                self._table.add_slot(
                    f"body-cell-{column.field}", f'<q-td :props="props">{column.slot}</q-td>'
                )

    def on_choose(self, choose: Callable[[str], object]) -> None:
        """Call `choose` with the field of a clicked button in a `CHOOSE_SLOT`."""
        self._table.on("choose", lambda event: choose(str(event.args)))

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Show other rows."""
        if rows == self._table.rows:
            return
        if (len(rows) > self._page_rows > 0) == bool(self._table.props.get("hide-pagination")):
            if len(rows) > self._page_rows > 0:
                self._table.props(remove="hide-pagination")
            else:
                self._table.props("hide-pagination")
        self._table.rows = rows


JOB_SLOT: Final = f"""
<a v-if="props.row.job" class="p-job" :href="'{DASHBOARD}/jobs/' + props.row.job">{{{{ props.row.job }}}}</a>"""
"""The template for the id of a job, from the field job."""

WRAP_SLOT: Final = '<div class="p-wrap">{{ props.value }}</div>'
"""The template for text that may be long."""

CHOOSE_SLOT: Final = """
<button type="button" class="p-choose" @click="() => $parent.$emit('choose', props.row.{field})">
  {{{{ props.row.{field} }}}}</button>"""
"""The template for a field that can be clicked, for `Table.on_choose`. Format it with the name of the field."""

HEALTH_SLOT: Final = """
<span class="p-health" :class="'p-' + props.row.level" :title="props.row.why">
  <q-icon :name="props.row.icon" aria-hidden="true" />{{ props.row.health }}
</span>"""
"""The template for the health of a job, from the fields level, icon, health and why."""
