"""Projects: a folder with a job, sample input and tests, for people to begin with.

In: a name.
Out: a project whose tests pass.
Imports: base, errors, jobs.
"""
