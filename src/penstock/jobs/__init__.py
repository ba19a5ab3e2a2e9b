"""Jobs: load, compile, start, commit and stop one run of a job.

In: a job file, bindings and settings.
Out: committed micro-batches, receipts, metrics, and a summary.
Imports: base, bindings, brokers, checkpoints, commands, connectors, control, databases, errors, joins,
    kinesis, lakes, machine, metrics, models, mqtt, objects, operators, rabbitmq, realtime, records,
    registries, runtime, savepoints, sinks, snapshots, sources, spark, sql, state, stores, streams, tables,
    webhooks.
"""
