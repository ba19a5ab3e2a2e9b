"""Snapshots: named Arrow tables as files with a manifest. Dumps and savepoints are snapshots.

In: tables, part by part.
Out: a complete folder or none; the same tables, read back.
Imports: base, errors, objects.
"""
