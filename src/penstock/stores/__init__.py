"""Stores: values, rows and documents of stores as sinks, idempotent by key.

In: records of one micro-batch.
Out: values under keys made of fields, which what older runs and attempts still write does not change.
Imports: amazon, base, bindings, errors, records, sinks, tables.
"""
