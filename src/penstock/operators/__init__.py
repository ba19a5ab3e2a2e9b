"""Operators: what happens to records. Plain Python and Arrow; nothing here knows Spark."""
