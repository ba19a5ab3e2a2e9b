"""Sources: where records enter; logs that can be replayed, and receivers that journal what cannot.

In: files, topics, queues, sockets.
Out: chunks of undecoded records with their positions.
Imports: base, bindings, brokers, control, errors, metrics, objects, records.
"""
