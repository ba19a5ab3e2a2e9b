"""Engine: runs one step in one slot for one micro-batch, in plain Python and Arrow.

In: records, commands and stored state.
Out: emitted records, dead letters, reports, and new state.
Imports: base, control, errors, joins, models, operators, records, state, tables, windows.
"""
