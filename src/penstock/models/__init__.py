"""Models: versions of a model that a running job fetches, examines, and lets score its records.

In: commands on versions; the content of models from storage; columns of records.
Out: scores with the version that made them; the history of each version.
Imports: base, errors, objects, records, state.
"""
