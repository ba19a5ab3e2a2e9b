"""RabbitMQ: messages of queues and streams, acknowledged when they are in the journal; records as messages.

In: messages of a queue or a stream; records of one micro-batch.
Out: records in the journal of a stream; messages of an exchange, each confirmed.
Imports: base, bindings, errors, records, sinks, sources.
"""
