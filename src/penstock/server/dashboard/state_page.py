"""The page with the state of a job: its states, their values by key, and dumps to download."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from nicegui import ui

from penstock.base.sizes import format_bytes
from penstock.errors import ExternalSystemError
from penstock.savepoints.state_pages import KeyPage, KeysWanted, StoredKey
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import amount, clock_time
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.query_panel import QueryPanel
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.service import Dump
from penstock.server.service.view_resources import StateStep

__all__ = ["key_rows", "list_state_names", "state"]

_ROWS: Final = 25
_TRIES: Final = 8
_LONGEST_CELL: Final = 160
_STATES_EVERY_S: Final = 3.0
_CELL_SLOT: Final = '<code class="p-detail p-value">{{{{ props.row.{field} }}}}</code>'
_TAKE_SLOT: Final = """<a class="p-job" :href="'/v1/dumps/' + props.row.id" download>Download</a>"""
_DELETE_SLOT: Final = """
<button type="button" class="p-choose" @click="() => $parent.$emit('choose', props.row.id)">Delete</button>"""
_INNER: Final = "@"
_FORMATS: Final = {"csv": "CSV", "jsonl": "JSON Lines", "parquet": "Parquet"}


@job_tab("state", "State", icon="table_view", role=Role.VIEWER)
def state(visit: JobVisit) -> None:
    """Build the page with the state of a job."""
    with components.card("States", about="of each step, as declared by its newest run"):
        table = components.Table(
            [
                components.Column("step", "Step"),
                components.Column("keys", "Keys", number=True),
                components.Column("key", "Type of keys"),
                components.Column("state", "State"),
                components.Column("kind", "Kind"),
                components.Column(
                    "type", "Type of values", slot='<div class="p-wrap">{{ props.row.type }}</div>'
                ),
            ],
            key="row",
            page_rows=0,
            nothing="No step has state",
        )
    components.cli_equivalent(cli_equivalents.list_states(visit.job_id))
    browser = _Keys(visit) if visit.may(Role.OPERATOR) else None
    if browser is None:
        components.empty("lock", "Values of states need the role operator.")
    else:
        QueryPanel(visit)

    _Dumps(visit)

    def show(found: list[StateStep]) -> None:
        table.show(_state_rows(found))
        if browser is not None:
            browser.update(found)

    def read() -> list[StateStep]:
        return visit.service.reader.states(visit.job_id)

    visit.poll(read, show, key=("states", visit.job_id), every_s=_STATES_EVERY_S)


def _state_rows(found: list[StateStep]) -> list[dict[str, Any]]:
    rows = []
    for step in found:
        for number, one in enumerate(step.states or [{"name": "", "kind": "", "type": ""}]):
            first = number == 0
            rows.append(
                {
                    "row": f"{step.step} {one['name']}",
                    "step": step.step if first else "",
                    "keys": amount(step.keys) if first else "",
                    "key": step.key if first else "",
                    "state": one["name"].removeprefix(_INNER),
                    "kind": one["kind"],
                    # How windows and timers are stored is an implementation detail.
                    "type": "" if one["name"].startswith(_INNER) else one["type"],
                }
            )
    return rows


def list_state_names(found: tuple[StoredKey, ...]) -> list[str]:
    """List the names of the states of keys, in one order, and then timers and windows if there are any."""
    names = dict.fromkeys(name for one in found for name in one.values or {})
    hidden = [name for name in ("timers", "windows") if any(getattr(one, name) is not None for one in found)]
    return [*names, *hidden]


def key_rows(found: tuple[StoredKey, ...], names: list[str]) -> list[dict[str, Any]]:
    """Return keys as rows of the table. Their states are in the fields s0, s1 and so on, in the order of the names."""
    return [
        {
            "key": _format_value(one.key),
            "group": one.key_group,
            "size": format_bytes(one.bytes),
            **{f"s{place}": _cell(one, name) for place, name in enumerate(names)},
        }
        for one in found
    ]


def _cell(one: StoredKey, name: str) -> str:
    if one.values is None:
        return "too large"
    value = one.values[name] if name in one.values else getattr(one, name, None)
    text = "" if value is None else _format_value(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]} ..."


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Keys:
    """The keys of a step, a page at a time."""

    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        self._found: KeyPage | None = None
        self._names: list[str] | None = None
        self._shown_step = ""
        self._chosen = ""
        with components.card("Keys", about="after the newest committed micro-batch"):
            with ui.element("div").classes("p-body"):
                with ui.element("form").classes("p-row p-keys") as form:
                    form.on("submit.prevent", self._find)
                    self._step = ui.select([], label="Step")
                    self._key = ui.input("Key", placeholder="a key, or empty for all")
                    self._contains = ui.input("Contains", placeholder="part of the key")
                    for field in (self._step, self._key, self._contains):
                        field.props("outlined dense").on_value_change(self._update_cli)
                    self._button = components.action_button(
                        visit, "Find", "search", Role.OPERATOR, None, primary=True
                    )
                    self._button.props("type=submit")
                self._status = ui.label("Find lists the keys by key group.")
                self._status.classes("p-muted").props("role=status")
            self._place = ui.element("div")
            with ui.element("div").classes("p-body p-pager"):
                self._next = ui.button(
                    "Next page", icon="navigate_next", on_click=self._show_next, color=None
                )
                self._next.props("no-caps unelevated").classes("p-button p-plain")
                self._next.set_visibility(False)
                self._whole = components.text("", "pre").classes("p-detail p-whole")
                self._whole.set_visibility(False)
                self._cli = components.cli_equivalent("")
        self._update_cli()

    def update(self, found: list[StateStep]) -> None:
        """Offer the steps of the job, which may have changed."""
        steps = [step.step for step in found]
        if steps != self._step.options:
            self._step.set_options(steps, value=self._step.value or next(iter(steps), None))

    def _update_cli(self) -> None:
        key = self._key.value or self._chosen or "KEY"
        self._cli.set_text(cli_equivalents.show_key(self._visit.job_id, self._step.value or "STEP", key))

    async def _find(self) -> None:
        await self._show_page(None)

    async def _show_next(self) -> None:
        if self._found is not None:
            await self._show_page(self._found.next)

    async def _show_page(self, after: str | None) -> None:
        if not self._step.value:
            return
        wanted = KeysWanted(
            step=self._step.value,
            key=self._key.value or None,
            contains=self._contains.value or "",
            limit=_ROWS,
            after=after,
        )
        if self._shown_step != wanted.step:
            self._clear(wanted.step)
        self._status.set_text("Reading the state ...")
        for button in (self._button, self._next):
            button.disable()
        found = await self._read(wanted)
        for button in (self._button, self._next):
            button.enable()
        if found is None:
            self._status.set_text("Cannot show the state now. Try again, or take a dump.")
            return
        self._found = found
        self._show(found)

    def _clear(self, step: str) -> None:
        """Clear the content of the step shown before."""
        self._shown_step = step
        self._names, self._chosen = None, ""
        self._place.clear()
        self._whole.set_visibility(False)
        self._next.set_visibility(False)
        self._update_cli()

    async def _read(self, wanted: KeysWanted) -> KeyPage | None:
        """Return a page of keys. Asks again while keys are being read for others."""

        def read(_: str) -> KeyPage | ExternalSystemError:
            try:
                return self._visit.service.reader.keys(self._visit.job_id, wanted)
            except ExternalSystemError as e:
                return e

        for _ in range(_TRIES):
            found = await self._visit.act(Role.OPERATOR, read)
            if not isinstance(found, ExternalSystemError):
                return found
            self._status.set_text(str(found))
        return None

    def _show(self, found: KeyPage) -> None:
        names = list_state_names(found.items)
        if names != self._names:
            self._names = names
            self._place.clear()
            with self._place:
                self._table = components.Table(
                    [
                        components.Column("key", "Key", slot=components.CHOOSE_SLOT.format(field="key")),
                        components.Column("group", "Key group", number=True),
                        *(
                            components.Column(f"s{place}", name, slot=_CELL_SLOT.format(field=f"s{place}"))
                            for place, name in enumerate(names)
                        ),
                        components.Column("size", "Size", number=True),
                    ],
                    key="key",
                    page_rows=0,
                    nothing="No such key",
                )
                self._table.on_choose(self._choose)
        self._table.show(key_rows(found.items, names))
        self._whole.set_visibility(False)
        self._next.set_visibility(found.next is not None)
        more = ", and more" if found.next is not None else ""
        keys = "1 key" if len(found.items) == 1 else f"{len(found.items)} keys"
        self._status.set_text(f"{keys} after micro-batch {found.batch}{more}.")

    def _choose(self, key: str) -> None:
        """Show all states of a key."""
        assert self._found is not None
        for one in self._found.items:
            if _format_value(one.key) == key:
                held = {**(one.values or {}), "timers": one.timers, "windows": one.windows}
                known = {name: value for name, value in held.items() if value is not None}
                self._whole.set_text(f"{key}\n{json.dumps(known, indent=2, ensure_ascii=False)}")
                self._whole.set_visibility(True)
                self._chosen = key
                self._update_cli()


class _Dumps:
    """The dumps of a job, and a button to take one."""

    def __init__(self, visit: JobVisit) -> None:
        self._visit = visit
        with components.card("Dumps", about="all states as files for people and programs"):
            with ui.element("div").classes("p-body"), ui.element("div").classes("p-toolbar"):
                self._format = ui.select(_FORMATS, value="csv", label="Format").props("outlined dense")
                self._format.classes("p-format")
                components.action_button(
                    visit, "Dump the state", "download", Role.OPERATOR, self._dump, primary=True
                )
            self._table = components.Table(
                [
                    components.Column("id", "Dump"),
                    components.Column("at", "Requested (UTC)"),
                    components.Column("who", "By"),
                    components.Column("batch", "Micro-batch", number=True),
                    components.Column("format", "Format"),
                    components.Column("rows", "Rows", number=True),
                    components.Column("size", "Size", number=True),
                    *(
                        [
                            components.Column("take", "", slot=_TAKE_SLOT),
                            components.Column("delete", "", slot=_DELETE_SLOT),
                        ]
                        if visit.may(Role.OPERATOR)
                        else []
                    ),
                ],
                key="id",
                page_rows=0,
                nothing="No dumps yet",
            )
            self._table.on_choose(self._delete)
            with ui.element("div").classes("p-body"):
                self._cli = components.cli_equivalent("")
        self._format.on_value_change(self._update_cli)
        self._update_cli()
        visit.poll(visit.service.dumps, self._show, key="dumps")

    def _update_cli(self) -> None:
        self._cli.set_text(cli_equivalents.dump_state(self._visit.job_id, self._format.value))

    def _show(self, found: list[Dump]) -> None:
        mine = [dump for dump in found if dump.job == self._visit.job_id]
        self._table.show(
            [
                {
                    "id": dump.id,
                    "at": clock_time(dump.created_ms),
                    "who": dump.created_by,
                    "batch": dump.batch,
                    "format": _FORMATS.get(dump.format, dump.format),
                    "rows": amount(dump.rows),
                    "size": format_bytes(dump.bytes),
                }
                for dump in sorted(mine, key=lambda dump: -dump.created_ms)
            ]
        )

    async def _dump(self) -> None:
        form = self._format.value
        await self._visit.carry_out(
            Role.OPERATOR,
            f"Dumping the state as {_FORMATS[form]}",
            lambda who: self._visit.service.dump(self._visit.job_id, who, form=form),
        )

    async def _delete(self, dump_id: str) -> None:
        url = f"{self._visit.context.config.url}/v1/dumps/{dump_id}"
        if await components.ask(
            "Delete this dump?",
            "Its files are deleted. The job and its state do not change.",
            # penstock has no command for this.
            command=f'curl -X DELETE -H "Authorization: Bearer $TOKEN" {shlex.quote(url)}',
            confirm="Delete the dump",
            target=dump_id,
        ):
            await self._visit.act(Role.OPERATOR, lambda who: self._visit.service.delete_dump(dump_id, who))
