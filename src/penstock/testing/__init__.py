"""Testing: a whole job in the process of a test, without Spark, in milliseconds.

In: a job, and what a test sends it: records, commands, time, crashes.
Out: what left through its sinks, dead letters, receipts, and the state that it holds.
Imports: base, bindings, checkpoints, commands, control, engine, errors, objects, operators, records, runtime,
savepoints, sinks, snapshots, sources, state, streams.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.testing.batch_outcome import BatchOutcome
    from penstock.testing.harness import JobHarness
    from penstock.testing.replay import ReplayMismatchError

__all__ = ["BatchOutcome", "JobHarness", "ReplayMismatchError"]

_MODULES: Final = {"BatchOutcome": "batch_outcome", "JobHarness": "harness", "ReplayMismatchError": "replay"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: each session of pytest loads this package, also where no test has a job."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
