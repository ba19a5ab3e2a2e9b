"""Savepoints: the state of a job as files that belong to the user.

In: a checkpoint, or a snapshot.
Out: a dump, a savepoint, a page of keys, or the first state of another job.
Imports: base, checkpoints, engine, errors, models, objects, records, runtime, snapshots, sources, spark,
state, windows.
"""
