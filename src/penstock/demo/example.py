"""The example that the demo runs: its files and its reference fold.

The demo runs the files of `examples/temperature_control` themselves, through the loader of `penstock run`. So there is
only one copy of the job, the one that people read. A wheel has the folder inside this package.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.jobs.job_loader import LoadedJob, load_job

__all__ = ["Fold", "load_example", "load_fold"]

_NAME: Final = "temperature_control"


class Fold(Protocol):
    """The job as a fold over single records; see `reference.py` of the example."""

    def take_setting(self, setting: dict[str, Any]) -> None:
        """Apply a new setting of a room."""

    def judge(self, reading: dict[str, Any]) -> dict[str, Any] | None:
        """Return the command that a reading causes, or None."""


def load_example() -> LoadedJob:
    """Load the example's job."""
    return load_job(str(_folder() / "job.py"))


def load_fold() -> Fold:
    """Return a new fold from the example's reference. Each call loads the file again, without using the import path."""
    path = _folder() / "reference.py"
    spec = importlib.util.spec_from_file_location(f"penstock_demo_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fold: Fold = module.Fold()
    return fold


def _folder() -> Path:
    """Return the folder of the example: inside the installed package, else next to the source."""
    here = Path(__file__).resolve()
    places = [here.with_name(_NAME), *(parent / "examples" / _NAME for parent in here.parents[3:4])]
    for place in places:
        if (place / "job.py").is_file():
            return place
    raise PenstockError(
        f"The example {_NAME} is not part of this installation (looked in {' and '.join(map(str, places))}). "
        "Reinstall penstock."
    )
