"""The tables of all key groups that one task serves, as one block of bytes: what is stored for a step.

The block is an Arrow IPC stream of one batch with a row for each key group: its number, how many keys it holds, and
its table as `GroupState` made it. What the step keeps once for the whole slot, its header, is the row of the number -1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import StateError

__all__ = ["GroupTables"]

_SCHEMA: Final = pa.schema([("key_group", pa.int32()), ("keys", pa.int64()), ("table", pa.large_binary())])
_HEADER: Final = -1


class GroupTables:
    """Tables by key group. `stored` is what an earlier `dump` gave, or None where there is nothing yet."""

    def __init__(self, stored: bytes | None) -> None:
        self._tables: dict[int, tuple[int, pa.Buffer | bytes]] = {}
        self.header: bytes | None = None
        self._changed = False
        if stored is None:
            return
        try:
            batch = pa.ipc.open_stream(stored).read_next_batch()
        except (pa.ArrowInvalid, StopIteration) as e:
            raise StateError(f"The stored state of a step cannot be read: {e}") from e
        groups, keys, tables = batch.columns
        for place, (group, count) in enumerate(zip(groups.to_pylist(), keys.to_pylist(), strict=True)):
            if group == _HEADER:
                self.header = tables[place].as_py()
            else:
                self._tables[group] = (count, tables[place].as_buffer())

    def table(self, key_group: int) -> pa.Buffer | bytes | None:
        """The table of a key group, or None when it has none."""
        found = self._tables.get(key_group)
        return None if found is None else found[1]

    def put(self, key_group: int, keys: int, table: bytes) -> None:
        """Replace the table of a key group, which holds so many keys; without keys there is nothing to keep."""
        if keys:
            self._tables[key_group] = (keys, table)
        else:
            self._tables.pop(key_group, None)
        self._changed = True

    def put_header(self, header: bytes | None) -> None:
        """Replace the header."""
        self._changed = self._changed or header != self.header
        self.header = header

    @property
    def key_groups(self) -> int:
        """How many key groups hold keys."""
        return len(self._tables)

    @property
    def changed(self) -> bool:
        """Whether a table was put."""
        return self._changed

    @property
    def keys(self) -> int:
        """How many keys all tables hold."""
        return sum(count for count, _ in self._tables.values())

    def dump(self) -> bytes:
        """Header and tables as one block, in the order of the key groups."""
        rows = dict(self._tables)
        if self.header is not None:
            rows[_HEADER] = (0, self.header)
        groups = sorted(rows)
        keys, tables = zip(*(rows[group] for group in groups), strict=True) if groups else ((), ())
        offsets = np.zeros(len(groups) + 1, np.int64)
        np.cumsum([len(table) for table in tables], out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(tables))]
        arrays = [
            pa.array(groups, pa.int32()),
            pa.array(keys, pa.int64()),
            pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(groups), buffers),
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        dumped: bytes = sink.getvalue().to_pybytes()
        return dumped
