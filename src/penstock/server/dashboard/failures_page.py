"""The page with the failures of a job: failed runs, and records that could not be processed."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from penstock.base.sizes import format_bytes
from penstock.server.api.access import Role
from penstock.server.dashboard import components
from penstock.server.dashboard.display_texts import amount, clock_time
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.job_resources import Run
from penstock.server.service.view_resources import DeadLetter, DeadLetters

__all__ = ["failed_run_rows", "letter_rows", "letters", "reason_rows"]

_MOST: Final = 100
_SAMPLE_CHARACTERS: Final = 200
_EVERY_S: Final = 3.0
_SAMPLE_SLOT: Final = '<code class="p-detail">{{ props.row.sample }}</code>'
_WHY_SLOT: Final = '<div class="p-wrap">{{ props.row.reason }}</div>'
_FAILED: Final = frozenset({"failed", "killed", "refused"})


@job_tab("errors", "Errors", icon="report", role=Role.OPERATOR)
def letters(visit: JobVisit) -> None:
    """Build the page with the failures of a job."""
    _LettersPage(visit)


def failed_run_rows(found: list[Run]) -> list[dict[str, Any]]:
    """Return the failed runs as rows of the table, newest first."""
    return [
        {
            "run": run.run,
            "at": clock_time(run.ended_ms),
            "end": (run.end_kind or "").capitalize(),
            "reason": run.why or "",
        }
        for run in found
        if (run.end_kind or "").lower() in _FAILED
    ]


def reason_rows(found: DeadLetters) -> list[dict[str, Any]]:
    """Return the reasons why records could not be processed as rows of the table, the most frequent first."""
    return [
        {
            "row": f"{one.stream} {one.step} {one.reason}",
            "reason": one.reason,
            "step": one.step or "-",
            "stream": one.stream,
            "count": amount(one.count),
        }
        for one in found.reasons
    ]


def letter_rows(found: DeadLetters) -> list[dict[str, Any]]:
    """Return dead letters as rows of the table, newest first."""
    return [
        {
            "place": _place(one),
            "at": clock_time(one.at_ms),
            "batch": "" if one.batch is None else one.batch,
            "step": one.step or "-",
            "reason": one.reason,
            "sample": one.raw[:_SAMPLE_CHARACTERS],
            "size": format_bytes(one.raw_bytes),
        }
        for one in reversed(found.items)
    ]


def _place(letter: DeadLetter) -> str:
    return f"{letter.stream} {letter.partition} {letter.offset}"


class _LettersPage:
    def __init__(self, visit: JobVisit) -> None:
        self._known: dict[str, DeadLetter] = {}
        with components.card("Failed runs"):
            runs = components.Table(
                [
                    components.Column("run", "Run"),
                    components.Column("at", "Ended (UTC)"),
                    components.Column("end", "End"),
                    components.Column("reason", "Why", slot=_WHY_SLOT),
                ],
                key="run",
                page_rows=10,
                nothing="No run has failed",
            )
        with components.card("Reasons", about=f"of the newest {_MOST} dead letters"):
            self._reasons = components.Table(
                [
                    components.Column("reason", "Reason", slot=_WHY_SLOT),
                    components.Column("count", "Records", number=True),
                    components.Column("step", "Step"),
                    components.Column("stream", "Stream"),
                ],
                key="row",
                page_rows=0,
                nothing="Every record was processed",
            )
        with components.card("Dead letters", about="records that could not be processed, newest first"):
            self._table = components.Table(
                [
                    components.Column("at", "Time (UTC)"),
                    components.Column("batch", "Micro-batch", number=True),
                    components.Column("place", "Record", slot=components.CHOOSE_SLOT.format(field="place")),
                    components.Column("step", "Step"),
                    components.Column("reason", "Reason", slot=_WHY_SLOT),
                    components.Column("sample", "Sample", slot=_SAMPLE_SLOT),
                    components.Column("size", "Size", number=True),
                ],
                key="place",
                page_rows=20,
                nothing="Every record was processed",
            )
            self._table.on_choose(self._choose)
            with ui.element("div").classes("p-body"):
                self._whole = components.text("", "pre").classes("p-detail p-whole")
                self._whole.set_visibility(False)

        visit.poll(
            lambda: visit.service.runs(visit.job_id),
            lambda found: runs.show(failed_run_rows(found)),
            key=("runs", visit.job_id),
        )
        visit.poll(
            lambda: visit.service.reader.dead_letters(visit.job_id, _MOST),
            self._show,
            key=("dead letters", visit.job_id),
            every_s=_EVERY_S,
        )

    def _show(self, found: DeadLetters) -> None:
        self._known = {_place(one): one for one in found.items}
        self._reasons.show(reason_rows(found))
        self._table.show(letter_rows(found))

    def _choose(self, place: str) -> None:
        """Show a record, up to a size limit."""
        letter = self._known.get(place)
        if letter is not None:
            note = "" if letter.encoding == "text" else "Not text, so in base64:\n"
            self._whole.set_text(f"{place}\n{letter.reason}\n\n{note}{letter.raw}")
            self._whole.set_visibility(True)
