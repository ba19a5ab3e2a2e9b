"""The page with the checkpoint of a job: the micro-batches to which the job can go back."""

from __future__ import annotations

from typing import Final

from penstock.base.sizes import format_bytes
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import amount, clock_time
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.view_resources import Checkpoints

__all__ = ["checkpoints"]

_MOST: Final = 200
_EVERY_S: Final = 2.0


@job_tab("checkpoints", "Checkpoints", icon="save", role=Role.VIEWER)
def checkpoints(visit: JobVisit) -> None:
    """Build the page with the checkpoint of a job."""
    tiles = components.Tiles(
        kept="Micro-batches kept",
        origin="Origin",
        epoch="Started",
        tasks="Tasks per step",
        groups="Key groups",
    )
    with components.card("Committed micro-batches", about="to which the job can go back, newest first"):
        table = components.Table(
            [
                components.Column("batch", "Micro-batch"),
                components.Column("at", "Committed (UTC)"),
                components.Column("took", "Took", number=True),
                components.Column("keys", "Keys", number=True),
                components.Column("state", "State", number=True),
            ],
            key="batch",
            page_rows=20,
            nothing="No micro-batch committed yet",
        )

    def show(found: Checkpoints) -> None:
        more = "" if found.next is None else "+"
        tiles.show(
            kept=f"{len(found.items)}{more} of {found.retained_batches}",
            origin="nothing" if found.origin == "empty" else f"a {found.origin}",
            epoch="once" if found.epoch == 1 else f"{found.epoch} times",
            tasks=str(found.parallelism),
            groups=str(found.key_groups),
        )
        table.show(
            [
                {
                    "batch": one.batch,
                    "at": clock_time(one.committed_ms),
                    "took": "" if one.duration_s is None else f"{one.duration_s * 1000:,.0f} ms",
                    "keys": amount(one.keys),
                    "state": "" if one.state_bytes is None else format_bytes(one.state_bytes),
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
    components.cli_equivalent(cli_equivalents.show_job(visit.job_id))
