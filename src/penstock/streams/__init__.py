"""Streams: what users chain to describe a job. Describing never runs anything.

In: the user's job file.
Out: a graph of sources, steps and sinks.
Imports: base, control, errors, operators, records, state, windows.
"""
