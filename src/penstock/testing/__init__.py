"""Testing: a whole job in the process of a test, without Spark, in milliseconds.

In: a job, and what a test sends it: records, commands, time, crashes.
Out: what left through its sinks, dead letters, receipts, and the state that it holds.
Imports: base, bindings, checkpoints, commands, control, engine, errors, objects, operators, records, runtime,
savepoints, sinks, snapshots, sources, state, streams.
"""

from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.harness import JobHarness
from penstock.testing.replay import ReplayMismatchError

__all__ = ["BatchOutcome", "JobHarness", "ReplayMismatchError"]
