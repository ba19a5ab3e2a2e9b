"""Machine: what penstock finds, keeps or starts here: Java, jars, a broker, cores and memory.

In: an environment.
Out: paths, programs and limits.
Imports: errors.
"""
