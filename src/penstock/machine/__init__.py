"""Machine: the local resources that penstock finds, keeps or starts: Java, jars, servers, cores and memory.

In: an environment.
Out: paths, programs and limits.
Imports: errors.
"""
