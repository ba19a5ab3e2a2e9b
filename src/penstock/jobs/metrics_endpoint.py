"""Metrics endpoint: serve the metrics of a run to Prometheus while it lasts, if the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.jobs.metrics_recorder import MetricsRecorder
from penstock.jobs.settings import RunSettings
from penstock.metrics.addresses import metrics_address

__all__ = ["serve_metrics"]


@contextmanager
def serve_metrics(
    settings: RunSettings, recorder: MetricsRecorder, on_note: Callable[[str], None]
) -> Iterator[None]:
    """Serve the metrics of a run at the address in its settings, and report the URL to `on_note`."""
    bind = settings.metrics_bind
    if bind is None:
        yield
        return
    # These take a while to load.
    from penstock.metrics.exposition import ExposedJob, exposition
    from penstock.metrics.metrics_server import MetricsServer

    address = metrics_address(bind, allow_remote=settings.metrics_allow_remote)
    with MetricsServer(
        address,
        lambda: exposition([ExposedJob(recorder.latest, batch_running_s=recorder.batch_running_s)]),
    ) as server:
        on_note(f"The metrics of the job are at {server.url}.")
        yield
