"""Archives: zip archives that are written while they are sent."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["zip_files"]

_CHUNK_BYTES: Final = 1 << 18
# The earliest time in the format, so that the same files produce the same archive.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


class _Written(io.RawIOBase):
    """A file that keeps written bytes until they are taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # bytes are all that is written here
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found


def zip_files(folder: Path, names: Iterable[str]) -> Iterator[bytes]:
    """Zip files, given by their names in a folder, chunk by chunk. The files must not change meanwhile."""
    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in names:
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            with (folder / name).open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
                    if piece := written.take():
                        yield piece
    yield written.take()
