"""Queries: SQL over the state of jobs, in checkpoints, dumps and savepoints. Needs the extra `penstock[sql]`.

In: a snapshot, or the checkpoint of a job that may be running, and a query.
Out: an Arrow table and the micro-batch, or an error with the position.
Imports: checkpoints, engine, errors, savepoints, snapshots, state.
"""
