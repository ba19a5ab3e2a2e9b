"""Health of a job, in a word that requires no knowledge of statuses. Pure functions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.server.lifecycle.statuses import ENDED, WITH_DRIVER, JobStatus
from penstock.server.service.job_resources import Job

__all__ = ["ATTENTION", "Health", "Level", "health_of", "lag_of", "throughput_of"]

BEHIND_S: Final = 60.0
"""A job is behind when its oldest input has been waiting for longer than this, in seconds."""

_RECENT_MS: Final = 10 * 60_000


class Level(enum.StrEnum):
    """How urgently a job needs attention."""

    GOOD = "good"
    BUSY = "busy"
    WARNING = "warning"
    BAD = "bad"
    IDLE = "idle"


ATTENTION: Final = frozenset({Level.WARNING, Level.BAD})
"""The levels that need attention."""

ICONS: Final[Mapping[Level, str]] = {
    Level.GOOD: "check_circle",
    Level.BUSY: "pending",
    Level.WARNING: "warning",
    Level.BAD: "error",
    Level.IDLE: "radio_button_unchecked",
}


@dataclass(frozen=True)
class Health:
    """The health of a job: a level, a word, and the reason as a sentence."""

    level: Level
    word: str
    why: str

    @property
    def icon(self) -> str:
        """The icon with the same meaning as the colour."""
        return {"Paused": "pause_circle", "Finished": "task_alt", "Canceled": "cancel"}.get(
            self.word, ICONS[self.level]
        )


def health_of(job: Job, now_ms: int) -> Health:
    """Derive the health of a job from its status and progress."""
    status = job.status
    if status is JobStatus.FAILED:
        return Health(Level.BAD, "Failed", job.reason)
    if status is JobStatus.RESTARTING:
        return Health(Level.WARNING, "Restarting", job.reason)
    if status in ENDED or status is JobStatus.PAUSED:
        return Health(Level.IDLE, status.capitalize(), job.reason)
    if status is not JobStatus.RUNNING:
        return Health(Level.BUSY, status.capitalize(), job.reason)
    if job.restarts and now_ms - job.since_ms < _RECENT_MS:
        return Health(Level.WARNING, "Recovered", "It failed and was restarted in the last ten minutes.")
    waiting_s = _seconds(job.progress)
    if waiting_s is not None and waiting_s > BEHIND_S:
        return Health(Level.WARNING, "Behind", f"Records have been waiting for {waiting_s:,.0f} s.")
    letters = (job.progress or {}).get("dead_letters", 0)
    if letters:
        return Health(
            Level.WARNING, "Dead letters", f"{letters:,} records could not be processed in this run."
        )
    return Health(Level.GOOD, "Healthy", "It runs and keeps up with its input.")


def throughput_of(job: Job) -> float | None:
    """Return the records read per second over the last seconds; None without a driver that reports them."""
    if job.status not in WITH_DRIVER or job.progress is None:
        return None
    return float(job.progress.get("rows_per_s", 0.0))


def lag_of(job: Job) -> tuple[str, float] | None:
    """Return the lag of all sources as a unit and an amount; None if no source reports any.

    The unit is records if a source reports them, and otherwise files, bytes or seconds.
    """
    if job.status not in WITH_DRIVER:
        return None
    lags = [lag for lag in _lags(job.progress) if lag]
    for unit in ("records", "files", "bytes"):
        known = [lag[unit] for lag in lags if lag.get(unit) is not None]
        if known:
            return unit, float(sum(known))
    waiting_s = _seconds(job.progress)
    return None if waiting_s is None else ("s", waiting_s)


def _seconds(progress: dict[str, Any] | None) -> float | None:
    known = [lag["seconds"] for lag in _lags(progress) if lag.get("seconds") is not None]
    return max(known, default=None)


def _lags(progress: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [lag for lag in ((progress or {}).get("lag") or {}).values() if isinstance(lag, dict)]
