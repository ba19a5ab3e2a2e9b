"""Databases: tables of a database as sinks and sources that have each record exactly once.

In: records of one micro-batch; rows of a table, in the order of a column.
Out: rows, in the same transaction as the number of the micro-batch; a journal of rows.
Imports: bindings, errors, records, sinks, sources, tables.
"""
