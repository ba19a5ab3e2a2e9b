"""Projects: a folder with a job, sample input and tests to start from.

In: a name.
Out: a project whose tests pass.
Imports: base, errors, jobs.
"""
