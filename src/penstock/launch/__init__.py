"""Launch: run a job from Python.

In: a described job, and what its streams and sinks are bound to: URIs, or records, frames and iterators.
Out: a run to send to and to look at, and what left through its sinks.
Imports: base, checkpoints, commands, control, errors, jobs, operators, records, savepoints, snapshots, spark, streams.
"""
