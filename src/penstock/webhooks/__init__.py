"""Webhooks: records sent to a server by HTTP, at least once, with ids; records that others send to the job.

In: records of one micro-batch; requests to the job.
Out: requests, repeated while the server is away; what it refuses is rejected. Records in the journal of a stream.
Imports: base, bindings, errors, records, sinks, sources.
"""
