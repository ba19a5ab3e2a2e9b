"""Hashes of Kafka's Java client, which tests of partitions share."""

from __future__ import annotations

__all__ = ["MURMUR2"]

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""What Java's Utils.murmur2 returns, as its own tests have it."""
