"""Real time: tasks that stay for an interval, and process records as they come. Independent of Spark.

In: the plan of a job, the logs of its sources, stored state. Out: the reports of an interval, and its positions.

Imports: runtime, engine, state, sources, streams, records, base, errors.
"""
