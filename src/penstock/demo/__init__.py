"""The demo: simulated rooms, the job that keeps them warm, a live view, and an independent check.

In: the number of seconds to run.
Out: a verdict on every reading.
Imports: bindings, checkpoints, errors, jobs, machine, mqtt, records, runtime, sinks, sources.
"""
