"""Scaling: what a job can do, how many tasks it wants and why, and when to rescale it. Pure decisions on figures."""
