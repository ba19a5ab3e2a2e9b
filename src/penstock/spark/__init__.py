"""Spark: the only room that knows it. A plan becomes a streaming query.

In: a plan with its sources and sinks.
Out: a running query, its progress, and the state that it has stored.
Imports: base, bindings, errors, machine, runtime, sources, streams.
"""
