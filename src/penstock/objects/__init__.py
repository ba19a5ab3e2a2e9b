"""Objects: files and addresses outside a job that a run may open, and nothing else.

In: a URI, and what the run allows.
Out: bytes, or a refusal.
Imports: errors.
"""
