"""Spark: turn a plan into a streaming query. The only room that uses Spark.

In: a plan with its sources and sinks.
Out: a running query, its progress, and its stored state.
Imports: base, bindings, engine, errors, machine, objects, realtime, records, runtime, sinks, sources, state, streams.
"""
