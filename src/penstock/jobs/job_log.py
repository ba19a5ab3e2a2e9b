"""The job log: messages of a run that are not errors. Shown as lines of JSON; to people, only warnings are shown."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["job_log"]


job_log: Final = logging.getLogger("penstock.jobs")
"""The logger for messages of runs that are not errors."""
job_log.addHandler(logging.NullHandler())
