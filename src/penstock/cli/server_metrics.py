"""The metrics of a job of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.cli.metrics_tables import show_metrics
from penstock.cli.output import print_json
from penstock.server.service.metrics_resources import Metrics

if TYPE_CHECKING:
    from penstock.client.http import Server

__all__ = ["print_managed", "show_managed"]


def print_managed(server: Server, job_id: str, window_s: int, *, watch: bool) -> None:
    """Print the metrics as a line of JSON, and with `watch` a line for each micro-batch from then on."""
    path = f"/v1/jobs/{job_id}/metrics"
    found = server.get(path, window_s=window_s, limit=1)
    print_json(found)
    if watch:
        newest = found["batches"][-1]["batch"] if found["batches"] else None
        for batch in server.stream(f"{path}/stream", after=newest):
            print_json(batch)


def show_managed(server: Server, job_id: str, window_s: int, *, watch: bool) -> None:
    """Show the metrics as tables, and with `watch` anew each second."""

    def look() -> Metrics:
        found = server.patient_get(f"/v1/jobs/{job_id}/metrics", window_s=window_s, limit=1)
        return msgspec.convert(found, Metrics)

    show_metrics(job_id, look, watch=watch)
