"""The first page on a job: its current numbers and its configuration."""

from __future__ import annotations

from typing import Any

from penstock.base.durations import duration_text, seconds_text
from penstock.base.sizes import format_limits
from penstock.server.api.access import Role
from penstock.server.dashboard import cli_equivalents, components
from penstock.server.dashboard.display_texts import amount, clock_time
from penstock.server.dashboard.health import lag_of, throughput_of
from penstock.server.dashboard.live_charts import WINDOWS, show_charts
from penstock.server.dashboard.page_session import JobVisit
from penstock.server.dashboard.registry import job_tab
from penstock.server.service.job_resources import Job
from penstock.server.service.view_resources import JobConfig

__all__ = ["overview", "setting_rows"]


@job_tab("", "Overview", icon="space_dashboard", role=Role.VIEWER)
def overview(visit: JobVisit) -> None:
    """Build the page with the current numbers and the configuration of a job."""
    tiles = components.Tiles(
        records="Records in",
        mode="Mode",
        latency="Latency (p50)",
        lag="Waiting",
        commands="Commands",
        letters="Dead letters",
        restarts="Restarts",
    )
    show_charts(visit, lambda: float(min(WINDOWS)), ("throughput", "batch", "latency"))
    with components.card("Setup", about="non-default settings, and limits"):
        table = components.Table(
            [components.Column("name", "Setting"), components.Column("value", "Value")],
            key="name",
            page_rows=0,
        )

    def show(job: Job) -> None:
        tiles.show(**_numbers(job))

    def show_settings(found: tuple[Job, JobConfig]) -> None:
        table.show(setting_rows(*found))

    visit.poll(lambda: visit.service.get(visit.job_id), show, key=("job", visit.job_id))
    visit.poll(
        lambda: (visit.service.get(visit.job_id), visit.service.reader.config(visit.job_id)),
        show_settings,
        key=("set-up", visit.job_id),
        every_s=5.0,
    )
    components.cli_equivalent(cli_equivalents.show_job(visit.job_id))


def _numbers(job: Job) -> dict[str, str]:
    progress = job.progress or {}
    throughput, lag = throughput_of(job), lag_of(job)
    return {
        "records": "-" if throughput is None else f"{amount(throughput)}/s",
        "mode": _mode(job),
        "latency": _latency(job),
        "lag": "-" if lag is None else f"{amount(lag[1])} {lag[0]}",
        "commands": amount(progress.get("commands", 0)),
        "letters": amount(progress.get("dead_letters", 0)),
        "restarts": str(job.restarts),
    }


def _mode(job: Job) -> str:
    """Return how a job runs, and how long its last micro-batch or each interval takes."""
    if job.checkpoint_interval_ms:
        return f"real time, {duration_text(job.checkpoint_interval_ms)}"
    batch_ms = (job.progress or {}).get("batch_ms")
    return f"micro-batches, {batch_ms:,.0f} ms" if batch_ms else "micro-batches"


def _latency(job: Job) -> str:
    """Return the latency of the slowest sink in the newest micro-batch or interval with output."""
    found = ((job.progress or {}).get("latency") or {}).values()
    slowest_s = max((one["p50_s"] for one in found), default=None)
    return "-" if slowest_s is None else seconds_text(slowest_s)


def setting_rows(job: Job, config: JobConfig) -> list[dict[str, Any]]:
    """Return the configuration of a job as rows: non-default settings, and limits per micro-batch."""
    rows = {
        "definition": job.definition,
        "submitted": f"{clock_time(job.created_ms)} UTC by {job.created_by}",
        "run": str(job.run),
        **{f"binding {name}": uri for name, uri in job.bindings.items()},
        **{one.name: str(one.value) for one in config.settings if not one.is_default},
        **{f"limit of {name} per micro-batch": format_limits(most) for name, most in config.limits.items()},
    }
    return [{"name": name, "value": value} for name, value in rows.items()]
