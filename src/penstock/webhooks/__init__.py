"""Webhooks: records sent to a server by HTTP, at least once, with ids.

In: records of one micro-batch.
Out: requests, repeated while the server is away; what it refuses is rejected.
Imports: bindings, errors, records, sinks.
"""
