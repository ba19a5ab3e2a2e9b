"""Windows: which one a record belongs to, when it fires, and what comes of it, for one key at a time.

In: records and times of a key.
Out: panes.
Imports: base, errors, records, state.
"""
