"""Checkpoints: the folder that holds the progress and state of a job, and whether the job can resume from it.

In: a folder, or its home on an object store, and the state that a job declares.
Out: ownership, a verdict on each file, and descriptions that are readable without the job.
Imports: base, bindings, engine, errors, joins, models, objects, operators, records, runtime, snapshots,
    sources, state, streams.
"""
