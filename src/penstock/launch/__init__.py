"""Launch: run a job from Python.

In: a job, and the bindings of its streams and sinks: URIs, or records, frames and iterators.
Out: a run to send to and to inspect, and the outputs of its sinks.
Imports: base, checkpoints, commands, control, errors, jobs, operators, records, savepoints, snapshots, spark,
    sql, streams.
"""
