"""Joins: pair the records of two streams by key and time, as columns.

In: rows of both sides, held and new; the watermark.
Out: pairs and unmatched rows as new records; the rows that are still held.
Imports: base, errors, expressions, operators, records, state,
windows.
"""
