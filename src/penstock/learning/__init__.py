"""Learning: models that learn from one record at a time: of a few numbers, of River, and of scikit-learn.

In: the weights of models and the fields of records, of one key or as columns with one entry for each key.
Out: scores and new weights.
Imports: errors.
"""
