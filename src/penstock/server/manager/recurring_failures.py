"""Recurring failures: log what fails at every poll once, until the failure changes or ends."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import PenstockError

__all__ = ["RecurringFailures"]


class RecurringFailures:
    """Failures by subject. System errors are logged as a sentence, all others with their traceback."""

    def __init__(self, log: logging.Logger) -> None:
        self._log: Final = log
        self._logged: Final[dict[str, str]] = {}

    def log_failure(self, what: str, error: Exception) -> None:
        """Log that something failed, such as "The job x cannot be managed", and will be retried."""
        reason = f"{type(error).__name__}: {error}"
        if self._logged.get(what) == reason:
            return
        self._logged[what] = reason
        if isinstance(error, OSError | PenstockError):
            self._log.warning("%s now (%s). It is retried until it succeeds.", what, error)
        else:
            self._log.error("%s. It is retried.", what, exc_info=error)

    def log_success(self, what: str) -> None:
        """Log that what failed before has succeeded; do nothing if it had not failed."""
        if self._logged and self._logged.pop(what, None) is not None:
            self._log.info("Resolved: %s.", what)
