"""Learning: models of a few numbers that learn from one record at a time. NumPy alone.

In: the weights of models and the numbers of records, as columns with one entry for each key.
Out: scores and new weights.
Imports: errors.
"""
