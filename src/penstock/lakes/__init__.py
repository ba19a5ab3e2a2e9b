"""Lakes: tables of files with a log of commits, as sinks that have each record exactly once, and as sources.

In: records of one micro-batch.
Out: Parquet files, and one commit that names them and the number of the micro-batch; of sources, the rows of files.
Imports: base, bindings, errors, objects, records, sinks, sources.
"""
