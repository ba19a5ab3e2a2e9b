"""State: the memory of a step, by key group.

In: declared states; stored rows.
Out: values by key or as columns; changed rows.
Imports: base, errors, learning, records.
"""
