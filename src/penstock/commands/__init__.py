"""Commands from outside: whom they are for, how they reach a job, and what became of them.

In: a command, or a question about one.
Out: a record where the job reads its commands; receipts.
Imports: base, bindings, brokers, checkpoints, control, engine, errors, records, runtime, sinks, sources, streams.
"""
