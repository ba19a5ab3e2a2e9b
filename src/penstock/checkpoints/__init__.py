"""Checkpoints: the folder in which a job lives, what it holds, and whether a job can go on from it.

In: a folder, and the state that a job declares.
Out: ownership, a verdict on each file, and descriptions that can be read without the job.
Imports: base, bindings, engine, errors, operators, records, runtime, snapshots, sources, state, streams.
"""
