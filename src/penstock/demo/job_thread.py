"""The job's thread: run the example next to the demo's rooms, and stop it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Self

from penstock.demo.example import load_example
from penstock.demo.feeds import Feed
from penstock.errors import JobFailedError
from penstock.jobs.settings import RunSettings

if TYPE_CHECKING:
    from penstock.jobs.runner import Progress, RunSummary

__all__ = ["JobThread"]

_PATIENCE_S: Final = 60.0
_KEPT_BATCHES: Final = 1_000_000


class JobThread:
    """The job in its own thread; a context manager that stops it at the end."""

    def __init__(self, feed: Feed, checkpoint: str) -> None:
        self._settings = RunSettings(
            bindings=feed.bindings,
            checkpoint=checkpoint,
            # The check at the end needs every cut of the run.
            retained_batches=_KEPT_BATCHES,
        )
        self._stop = threading.Event()
        # A daemon, so that a second Ctrl-C need not wait for Spark.
        self._thread = threading.Thread(target=self._work, name="penstock-demo-job", daemon=True)
        self._summary: RunSummary | None = None
        self._error: BaseException | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._stop.set()
        if kind is not KeyboardInterrupt:
            self._thread.join(_PATIENCE_S)

    @property
    def progress(self) -> Progress | None:
        """The progress of the job; None until it has processed its first micro-batch."""
        progress = self._progress
        return None if progress is None or progress.batch_id < 0 else progress

    def check(self) -> None:
        """Raise the error of the job if it has failed, or JobFailedError if it has ended unasked."""
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive():
            raise JobFailedError("The job ended before the demo did.")

    def finish(self) -> RunSummary:
        """Stop the job and return its summary. Raises JobFailedError if it does not stop within 60 s."""
        self._stop.set()
        self._thread.join(_PATIENCE_S)
        if self._error is not None:
            raise self._error
        if self._summary is None:
            raise JobFailedError(f"The job did not stop within {_PATIENCE_S:.0f} s.")
        return self._summary

    def _work(self) -> None:
        try:
            # Spark is loaded here, so that the view appears before.
            from penstock.jobs.runner import JobRunner, RunHooks

            loaded = load_example()
            runner = JobRunner(loaded.job, self._settings, loaded.code)
            self._summary = runner.run(self._stop, RunHooks(on_progress=self._note))
        except BaseException as e:  # raised again in the demo's own thread
            self._error = e

    def _note(self, progress: Progress) -> None:
        self._progress = progress
