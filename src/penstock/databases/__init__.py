"""Databases: tables of a database as sinks that have each record exactly once.

In: records of one micro-batch.
Out: rows, in the same transaction as the number of the micro-batch.
Imports: bindings, errors, records, sinks, tables.
"""
