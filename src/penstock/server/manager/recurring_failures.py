"""Recurring failures: what goes wrong at every look is told once, until it is another failure or is over."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import PenstockError

__all__ = ["RecurringFailures"]


class RecurringFailures:
    """Failures by what they are of. An error of the system is told as a sentence, any other with its traceback."""

    def __init__(self, log: logging.Logger) -> None:
        self._log: Final = log
        self._told: Final[dict[str, str]] = {}

    def failed(self, what: str, error: Exception) -> None:
        """Something has failed, such as "The job x cannot be looked after", and is going to be tried again."""
        reason = f"{type(error).__name__}: {error}"
        if self._told.get(what) == reason:
            return
        self._told[what] = reason
        if isinstance(error, OSError | PenstockError):
            self._log.warning("%s now (%s). It is tried again until it can.", what, error)
        else:
            self._log.error("%s. It is tried again.", what, exc_info=error)

    def succeeded(self, what: str) -> None:
        """It has not failed this time."""
        if self._told and self._told.pop(what, None) is not None:
            self._log.info("What failed before is done: %s.", what)
