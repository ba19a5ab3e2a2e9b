"""Operators: what users write for one step: functions, handlers, keys, windows, watermarks.

In: the user's classes.
Out: their description; the engine runs them.
Imports: base, control, errors, records, state, windows.
"""
