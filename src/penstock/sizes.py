"""Sizes: numbers of bytes, and of other things, as people read them."""

from __future__ import annotations

__all__ = ["bytes_text", "counted"]


def bytes_text(size: float) -> str:
    """A size as people read it.

    >>> bytes_text(0), bytes_text(1536), bytes_text(5 << 30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: float, units: str) -> str:
    """A number with what it counts, whose word is given for many.

    >>> counted(1, "files"), counted(1200, "records")
    ('1 file', '1,200 records')
    """
    return f"{count:,} {units.removesuffix('s') if count == 1 else units}"
