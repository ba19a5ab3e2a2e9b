"""The example that the demo runs: where its files are, and its reference fold.

The demo runs the very files of `examples/temperature_control`, through the loader of `penstock run`. So there is one
copy of the job, the one that people read. A wheel carries the folder inside this package.
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
        """A room's owner asks for something else."""

    def judge(self, reading: dict[str, Any]) -> dict[str, Any] | None:
        """The command that a reading causes, or None."""


def load_example() -> LoadedJob:
    """The example's job."""
    return load_job(str(_folder() / "job.py"))


def load_fold() -> Fold:
    """A new fold of the example's reference. Each call loads the file anew and leaves the import path alone."""
    path = _folder() / "reference.py"
    spec = importlib.util.spec_from_file_location(f"penstock_demo_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fold: Fold = module.Fold()
    return fold


def _folder() -> Path:
    """Where the example is: inside the installed package, else beside the source."""
    here = Path(__file__).resolve()
    places = [here.with_name(_NAME), *(parent / "examples" / _NAME for parent in here.parents[3:4])]
    for place in places:
        if (place / "job.py").is_file():
            return place
    raise PenstockError(
        f"The example {_NAME} is not part of this installation (looked in {' and '.join(map(str, places))}). "
        "Install penstock again."
    )
