"""Server: runs jobs for many people: what they want, what is, and what to do about it.

In: requests by REST or from a browser.
Out: runs of jobs, their views, and an audit log.
Imports: base, bindings, checkpoints, commands, control, demo, errors, jobs, metrics, runtime, savepoints,
    scaling, snapshots, spark, streams.
"""
