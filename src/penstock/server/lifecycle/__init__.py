"""Lifecycle: the statuses of managed jobs, and pure decisions on their transitions."""
