"""Server: runs jobs for many people. It compares what they want with what is, and acts on the difference.

In: requests by REST or from a browser.
Out: runs of jobs, their views, and an audit log.
Imports: base, bindings, checkpoints, commands, control, demo, errors, jobs, metrics, runtime, savepoints,
    scaling, snapshots, spark, streams.
"""
