"""Scaling: what a job can do, how many tasks it wants and why. Pure decisions on metrics.

In: metrics and a policy.
Out: advice, or a decision to rescale.
Imports: base, checkpoints, errors, metrics.
"""
