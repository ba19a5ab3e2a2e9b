"""Commands from outside: their targets, how they reach a job, and their receipts.

In: a command, or the id of one.
Out: a record where the job reads its commands; receipts.
Imports: base, bindings, brokers, checkpoints, control, engine, errors, kinesis, models, mqtt, rabbitmq,
    records, sinks, streams.
"""
