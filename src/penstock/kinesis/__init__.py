"""Kinesis: streams that are read shard by shard into a journal, and written in order of their partition keys.

In: records of the shards of a stream, children after their parents; records of a sink.
Out: records in the journal of a stream, with the place in each shard; records of a stream, perhaps with origins.
Imports: amazon, bindings, errors, records, sinks, sources.
"""
