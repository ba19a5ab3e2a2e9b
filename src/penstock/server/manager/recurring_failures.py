"""Recurring failures: log what fails at every look once, until the failure changes or ends."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import PenstockError

__all__ = ["RecurringFailures"]


class RecurringFailures:
    """Failures by their subject. Errors of the system are logged as a sentence, any other with its traceback."""

    def __init__(self, log: logging.Logger) -> None:
        self._log: Final = log
        self._logged: Final[dict[str, str]] = {}

    def failed(self, what: str, error: Exception) -> None:
        """Log that something has failed, such as "The job x cannot be looked after", and will be tried again."""
        reason = f"{type(error).__name__}: {error}"
        if self._logged.get(what) == reason:
            return
        self._logged[what] = reason
        if isinstance(error, OSError | PenstockError):
            self._log.warning("%s now (%s). It is retried until it succeeds.", what, error)
        else:
            self._log.error("%s. It is retried.", what, exc_info=error)

    def succeeded(self, what: str) -> None:
        """Log that what failed before has succeeded."""
        if self._logged and self._logged.pop(what, None) is not None:
            self._log.info("What failed before is done: %s.", what)
