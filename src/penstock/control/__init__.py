"""Control: commands and receipts as data, and the rules for which commands are applied.

In: bytes of a command stream; reports of slots.
Out: validated commands, in order and without duplicates; receipts.
Imports: base.
"""
