"""Amazon: clients of Amazon's services, and their errors as sentences.

In: where a service answers, and as whom to ask it.
Out: clients that are kept in a process; errors that say what to do.
Imports: bindings, errors.
"""
