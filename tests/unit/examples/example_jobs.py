"""The jobs of the examples that have windows, with their modules, for tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from penstock.jobs.job_loader import load_job
from penstock.streams.job_description import JobDescription

EXAMPLES = Path(__file__).parents[3] / "examples"
if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))


def loaded(example: str, job_file: str) -> tuple[JobDescription, Any]:
    """The job of an example, and its module."""
    return load_job(str(EXAMPLES / example / f"{job_file}.py")).job, sys.modules[job_file]


def beside(example: str, module: str) -> Any:
    """Another module of an example, such as what makes its input."""
    return importlib.import_module(f"{example}.{module}")
