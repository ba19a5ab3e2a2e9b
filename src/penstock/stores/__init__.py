"""Stores: values of a key-value store as sinks, idempotent by key.

In: records of one micro-batch.
Out: values under keys made of fields, written only by the newest run and its newest attempt.
Imports: amazon, base, bindings, errors, records, sinks, tables.
"""
