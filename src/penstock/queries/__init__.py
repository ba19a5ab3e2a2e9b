"""Queries: SQL over the state of jobs, in dumps and savepoints. Needs DuckDB, the extra `penstock[sql]`.

In: a snapshot and a query.
Out: an Arrow table, or an error with the position.
Imports: errors, snapshots.
"""
