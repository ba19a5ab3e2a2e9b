"""The job log: where a run says what is no error; shown as lines of JSON, or to people where it is a warning."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["job_log"]


job_log: Final = logging.getLogger("penstock.jobs")
"""Where runs say what is not an error: as lines of JSON, or what is a warning to people."""
job_log.addHandler(logging.NullHandler())
