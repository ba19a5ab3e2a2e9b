"""Testing: run a whole job in the test process, without Spark, in milliseconds.

In: a job, and what a test sends to it: records, commands, time, crashes.
Out: the outputs of its sinks, dead letters, receipts, and its state.
Imports: base, bindings, checkpoints, commands, connectors, control, engine, errors, joins, models, objects,
    operators, records, runtime, savepoints, sinks, snapshots, sources, state, streams, tables.
"""

from penstock.testing.batch_outcome import BatchOutcome
from penstock.testing.harness import JobHarness
from penstock.testing.kafka_message import KafkaMessage
from penstock.testing.replay import ReplayMismatchError
from penstock.testing.tables import table_of

__all__ = ["BatchOutcome", "JobHarness", "KafkaMessage", "ReplayMismatchError", "table_of"]
