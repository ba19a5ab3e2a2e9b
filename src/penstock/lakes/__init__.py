"""Lakes: tables of files with a log of commits as sinks that have each record exactly once.

In: records of one micro-batch.
Out: Parquet files, and one commit that names them and the number of the micro-batch.
Imports: base, bindings, errors, records, sinks.
"""
