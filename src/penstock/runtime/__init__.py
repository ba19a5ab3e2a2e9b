"""Runtime: a job's graph as levels of keyed steps, and the work of its tasks. Independent of Spark.

In: a graph; chunks of records and packed rows.
Out: a plan; packed rows for the next level, sinks and the driver.
Imports: base, control, engine, errors, joins, metrics, models, operators, records, sinks, sources, state,
streams, tables, windows.
"""
