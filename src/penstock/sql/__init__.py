"""SQL jobs: statements in SQL, mapped to streams and steps. The parser is sqlglot's; nothing here runs a query.

In: the text of a SQL file, and functions of the user.
Out: the job that it describes, or its explanation.
Imports: base, errors, expressions, joins, operators, records, state, streams, tables, windows.
"""
