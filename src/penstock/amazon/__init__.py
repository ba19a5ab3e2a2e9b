"""Amazon: clients of Amazon's services, and their errors as sentences.

In: the address of a service, and the identity with which to ask it.
Out: clients that are kept in a process; errors that say what to do.
Imports: bindings, errors.
"""
