"""Windows: assign records to windows, decide when these fire, and compute their results, one key at a time.

In: records and times of a key.
Out: panes.
Imports: base, errors, records, state.
"""
