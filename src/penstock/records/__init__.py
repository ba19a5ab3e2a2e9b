"""Records: the fields of a record as Python objects, Arrow columns and bytes on the wire.

In: a dataclass, a Struct, a protobuf message class or a DDL string.
Out: record types that convert in bulk.
Imports: errors.
"""
