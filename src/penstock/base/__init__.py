"""Base: durations, sizes, instants, durable files and the version, for use in every room.

In: text, numbers and bytes.
Out: values, and files that are on disk when a call returns.
Imports: errors.
"""
