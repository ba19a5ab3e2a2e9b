"""The log display: show the progress of a run as one JSON object per line, for log collectors."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

import msgspec

from penstock.bindings.secrets import without_secrets

if TYPE_CHECKING:
    from penstock.jobs.commit import Progress, RunSummary

from penstock.jobs.display import units_of
from penstock.jobs.job_log import job_log

__all__ = ["LogDisplay", "LogEntry"]


_PROGRESS_S: Final = 5.0
# Clients of brokers that log each retry, and raise the same error anyway.
_CHATTER: Final = ("penstock.kafka", "pika", "rstream")


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of the log. Unknown fields are left out.

    `batch` is the newest micro-batch at the time of the message; `error` is the stack trace, if there is one.
    """

    time: dt.datetime
    level: str
    logger: str
    job: str = ""
    job_id: str = ""
    batch: int | None = None
    step: str = ""
    stream: str = ""
    message: str = ""
    details: dict[str, Any] = {}
    error: str = ""


_encoder: Final = msgspec.json.Encoder()


class _JsonLines(logging.Handler):
    """Writes log records as lines of JSON, with passwords in URIs masked."""

    def __init__(self, display: LogDisplay, target: TextIO) -> None:
        super().__init__()
        self._display: Final = display
        self._target: Final = target

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a whole line."""
        if record.name.startswith(_CHATTER):
            return
        try:
            self._target.write(self._line(record))
            self._target.flush()
        except Exception:  # as the standard handlers do
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> str:
        error = ""
        if record.exc_info is not None and record.exc_info[0] is not None:
            error = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        entry = LogEntry(
            time=dt.datetime.fromtimestamp(record.created, dt.UTC),
            level=record.levelname,
            logger=record.name,
            job=self._display.job,
            job_id=self._display.job_id,
            batch=self._display.batch,
            step=getattr(record, "step", ""),
            stream=getattr(record, "stream", ""),
            message=without_secrets(record.getMessage()),
            details=getattr(record, "details", {}),
            error=without_secrets(error),
        )
        return _encoder.encode(entry).decode() + "\n"


class LogDisplay:
    """Shows a run as lines of JSON, on standard error by default; a context manager.

    Logs all messages of penstock, and warnings or worse of other libraries.
    """

    def __init__(self, target: TextIO | None = None) -> None:
        self.job = ""
        self.job_id = ""
        self.batch: int | None = None
        self._handler: Final = _JsonLines(self, target or sys.stderr)
        self._logged_s = time.monotonic()
        self._logged_batch = -1

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._handler)
        job_log.setLevel(logging.INFO)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self._handler)
        job_log.setLevel(logging.NOTSET)

    def of(self, job: str, job_id: str) -> None:
        """Label the lines with this run from now on."""
        self.job, self.job_id = job, job_id

    def update(self, progress: Progress) -> None:
        """Log the progress of a run, every 5 seconds at most."""
        if progress.batch_id >= 0:
            self.batch = progress.batch_id
        now_s = time.monotonic()
        if progress.batch_ms is None:
            return
        if progress.batch_id != self._logged_batch and now_s - self._logged_s >= _PROGRESS_S:
            self._logged_s, self._logged_batch = now_s, progress.batch_id
            details = {
                "records_in": progress.records_in,
                "records_out": progress.records_out,
                "dead_letters": progress.dead_letters,
                "commands": progress.commands,
                "rows_per_s": round(progress.rows_per_s, 1),
                "batch_ms": progress.batch_ms,
                "lag": progress.lag,
            }
            if progress.latency:
                details["latency"] = progress.latency
            unit = "interval" if progress.mode == "real time" else "micro-batch"
            job_log.info("The job has done %s %d.", unit, progress.batch_id, extra={"details": details})

    def note(self, text: str) -> None:
        """Log a sentence."""
        job_log.info("%s", text)

    def error(self, text: str) -> None:
        """Log why the run has failed."""
        job_log.error("%s", text)

    def print_summary(self, summary: RunSummary) -> None:
        """Log the summary of the run."""
        details = {
            "records_in": summary.records_in,
            "records_out": summary.records_out,
            "dead_letters": summary.dead_letters,
            "commands": summary.commands,
        }
        if summary.latency:
            details["latency"] = summary.latency
        units = units_of(summary)
        text = f"The job has {summary.status} after {summary.batches} {units}."
        job_log.info("%s", text, extra={"details": details})
