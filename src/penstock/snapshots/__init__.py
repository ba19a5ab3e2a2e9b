"""Snapshots: named Arrow tables as files with a manifest, which dumps and savepoints are.

In: tables, part by part.
Out: a folder that is whole or not there; the same tables back.
Imports: base, errors, objects.
"""
