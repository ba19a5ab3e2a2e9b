"""Lifecycle: what a managed job can be, and what becomes of it. Pure decisions."""
