"""Server: runs jobs for many users. It compares their desired with their actual status, and acts on the difference.

In: requests by REST or from a browser.
Out: runs of jobs, views of them, and an audit log.
Imports: base, bindings, checkpoints, commands, control, demo, errors, jobs, machine, metrics, objects,
    queries, runtime, savepoints, scaling, snapshots, streams.
"""
