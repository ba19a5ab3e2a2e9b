"""Base: durations, sizes, instants, durable files and the version, which every room may use.

In: text, numbers and bytes.
Out: values, and files that are on disk when a call returns.
Imports: errors.
"""
