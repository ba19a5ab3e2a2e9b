"""Expressions: SQL conditions and columns, checked against a record type, evaluated on Arrow batches.

In: SQL text or `col` objects; a record type.
Out: typed nodes that travel to the workers; columns, and the rows that have no value.
Imports: errors, records.
"""
