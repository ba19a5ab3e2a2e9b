"""Bindings: the place to which each stream of a job is bound.

In: `NAME=URI` as a user writes it.
Out: a typed binding, or an error that lists the forms that are allowed.
Imports: errors.
"""
