"""The page with the checkpoint of a job: to which micro-batches it can go back."""

from __future__ import annotations

from typing import Final

from nicegui import ui

from penstock.server.api.access import Role
from penstock.server.dashboard import pieces, same_commands
from penstock.server.dashboard.registry import job_tab
from penstock.server.dashboard.texts import amount, clock_time
from penstock.server.dashboard.visits import JobVisit
from penstock.server.reading import CheckpointsInfo
from penstock.sizes import bytes_text

__all__ = ["checkpoints"]

_MOST: Final = 200
_EVERY_S: Final = 2.0


@job_tab("checkpoints", "Checkpoints", icon="save", role=Role.VIEWER)
def checkpoints(visit: JobVisit) -> None:
    """The checkpoint of a job."""
    titles = {
        "kept": "Micro-batches kept",
        "origin": "Began with",
        "epoch": "Started on it",
        "tasks": "Tasks of each step",
        "groups": "Key groups",
    }
    with ui.element("div").classes("p-tiles"):
        tiles = {}
        for name, title in titles.items():
            with ui.element("div").classes("p-tile"):
                ui.label(title).classes("p-muted p-small")
                tiles[name] = ui.label("").classes("p-number")
    with pieces.card("Committed micro-batches", about="to which the job can go back, newest first"):
        table = pieces.Table(
            [
                pieces.Column("batch", "Micro-batch"),
                pieces.Column("at", "Committed (UTC)"),
                pieces.Column("took", "Took", number=True),
                pieces.Column("keys", "Keys", number=True),
                pieces.Column("state", "State", number=True),
            ],
            key="batch",
            page_rows=20,
            nothing="No micro-batch is committed yet",
        )

    def show(found: CheckpointsInfo) -> None:
        more = "+" if found.more else ""
        numbers = {
            "kept": f"{len(found.items)}{more} of {found.retained_batches}",
            "origin": "nothing" if found.origin == "empty" else f"a {found.origin}",
            "epoch": "once" if found.epoch == 1 else f"{found.epoch} times",
            "tasks": str(found.parallelism),
            "groups": str(found.key_groups),
        }
        for name, text in numbers.items():
            if tiles[name].text != text:
                tiles[name].set_text(text)
        table.show(
            [
                {
                    "batch": one.batch,
                    "at": clock_time(one.committed_ms),
                    "took": "" if one.duration_s is None else f"{one.duration_s * 1000:,.0f} ms",
                    "keys": amount(one.keys),
                    "state": "" if one.state_bytes is None else bytes_text(one.state_bytes),
                }
                for one in found.items
            ]
        )

    visit.poll(
        lambda: visit.service.reader.checkpoints(visit.job_id, _MOST),
        show,
        key=("checkpoints", visit.job_id),
        every_s=_EVERY_S,
    )
    pieces.same(same_commands.show_job(visit.job_id))
