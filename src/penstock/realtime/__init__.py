"""Real time: tasks that run for an interval and process records as they arrive; it ends in a checkpoint. Without Spark.

In: a plan with its sources and sinks, stored state.
Out: the reports of the tasks, and the positions and rounds of an interval on disk.
Imports: base, engine, errors, machine, metrics, runtime, sources, state, streams.
"""
