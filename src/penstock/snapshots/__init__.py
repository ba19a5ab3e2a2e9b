"""Snapshots: named Arrow tables as files with a manifest, which dumps and savepoints are."""
