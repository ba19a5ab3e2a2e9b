"""Sizes: format numbers of bytes, and of other units, for people."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["format_bytes", "format_count", "format_limits"]


def format_bytes(size: float) -> str:
    """Format a size in bytes with a readable unit.

    >>> format_bytes(0), format_bytes(1536), format_bytes(5 << 30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: float, units: str) -> str:
    """Format a number with its unit, which is passed in the plural.

    >>> format_count(1, "files"), format_count(1200, "records")
    ('1 file', '1,200 records')
    """
    return f"{count:,} {units.removesuffix('s') if count == 1 else units}"


def format_limits(limits: Mapping[str, int]) -> str:
    """Format the limits of a micro-batch, by unit.

    >>> format_limits({"records": 2_000_000, "bytes": 256 << 20})
    '2,000,000 records, 256.0 MiB'
    """
    return ", ".join(
        format_bytes(limit) if unit == "bytes" else format_count(limit, unit)
        for unit, limit in limits.items()
    )
