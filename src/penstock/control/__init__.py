"""Control: commands and receipts as data, and which commands count.

In: bytes of a command stream; what slots report.
Out: checked commands, in order and without duplicates; receipts.
Imports: base.
"""
