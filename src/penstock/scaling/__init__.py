"""Scaling: the capacity of a job, how many tasks it needs, and why. Pure decisions on metrics.

In: metrics and a policy.
Out: advice, or a decision on a rescale.
Imports: base, checkpoints, errors, metrics.
"""
