"""Streams: the fluent API in which users describe a job. Describing a job never runs it.

In: the user's job file.
Out: a graph of sources, steps and sinks.
Imports: base, control, errors, expressions, joins, models, operators, records, state, tables, windows.
"""
