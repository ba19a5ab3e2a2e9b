"""Databases: tables of a database as sinks and sources that have each record exactly once, and to look records up.

In: records of one micro-batch; rows of a table, in the order of a column; keys.
Out: rows, in the same transaction as the number of the micro-batch; a journal of rows; the rows of keys.
Imports: bindings, errors, joins, records, sinks, sources, tables.
"""
