"""Carried files: small files in a folder of the driver's machine, whose contents are sent to tasks elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.records.types import RecordType
from penstock.sources.base import SourceChunk, Split
from penstock.sources.file_source import FileLog
from penstock.sources.found_files import LoggedFile

__all__ = ["CarriedFiles"]


class CarriedFiles(FileLog):
    """The files of a folder that tasks cannot reach. Their plan has the contents, so they should be small."""

    def _cut(self, files: Sequence[LoggedFile], parallelism: int) -> list[Split]:  # noqa: ARG002  # they are not cut
        return [self._carried(file) for file in files]

    def _carried(self, file: LoggedFile) -> Split:
        with self._as_external(file.path), Path(file.path).open("rb") as opened:
            # Only the bytes that the file had when it was found.
            return Split(file.partition, file.path, 0, file.size, opened.read(file.size))

    def _read_split(self, split: Split, record_type: RecordType) -> Iterator[SourceChunk]:
        assert split.content is not None
        # The ending says how the content is compressed.
        ending = Path(split.path).suffix
        with tempfile.NamedTemporaryFile(prefix="penstock-", suffix=ending) as file:
            file.write(split.content)
            file.flush()
            yield from self._read_file(split, file.name, record_type)
