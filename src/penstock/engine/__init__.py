"""Engine: one step at work in one slot of one micro-batch. Plain Python and Arrow.

In: records, commands and stored state.
Out: emitted records, dead letters, reports, and new state.
Imports: base, control, errors, operators, records, state, windows.
"""
