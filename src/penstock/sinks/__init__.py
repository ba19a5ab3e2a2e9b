"""Sinks: where records leave; staged by tasks, committed once per micro-batch.

In: records of one micro-batch.
Out: files, messages or lines, each once where the sink supports that.
Imports: base, bindings, brokers, errors, objects, records.
"""
