"""Operators: the user-facing parts of one step: functions, handlers, keys, windows, watermarks.

In: the user's classes.
Out: their description, which the engine runs.
Imports: base, control, errors, expressions, records, state, windows.
"""
