"""Doctor: checks whether jobs can run here, on this checkpoint and with these bindings.

In: a machine, a job file, a checkpoint.
Out: findings, each with its remedy.
Imports: bindings, brokers, checkpoints, connectors, databases, errors, jobs, kinesis, lakes, machine, mqtt,
    objects, rabbitmq, registries, runtime, savepoints, sinks, sources, state, stores, streams, webhooks.
"""
