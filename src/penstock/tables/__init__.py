"""Tables: changelogs, aggregates of groups, Top-N, deduplication and OVER aggregates, computed on columns.

In: records of a key group, some of them retractions, and the stored states of their keys.
Out: new states, and the changes that they make.
Imports: errors, expressions, operators, records, state, windows.
"""
