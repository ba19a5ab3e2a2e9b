"""Sizes: format numbers of bytes, and of other units, for people."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["bytes_text", "counted", "limits_text"]


def bytes_text(size: float) -> str:
    """Format a size in bytes with a readable unit.

    >>> bytes_text(0), bytes_text(1536), bytes_text(5 << 30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: float, units: str) -> str:
    """Format a number with its unit, which is passed in the plural.

    >>> counted(1, "files"), counted(1200, "records")
    ('1 file', '1,200 records')
    """
    return f"{count:,} {units.removesuffix('s') if count == 1 else units}"


def limits_text(limits: Mapping[str, int]) -> str:
    """Format the limits of a micro-batch, by unit.

    >>> limits_text({"records": 2_000_000, "bytes": 256 << 20})
    '2,000,000 records, 256.0 MiB'
    """
    return ", ".join(
        bytes_text(limit) if unit == "bytes" else counted(limit, unit) for unit, limit in limits.items()
    )
