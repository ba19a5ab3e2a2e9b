"""Registries: messages whose schema is in a schema registry.

In: messages that name their schema by a number, and the registry that has it.
Out: records of a stream, and messages of records.
Imports: bindings, errors, records.
"""
