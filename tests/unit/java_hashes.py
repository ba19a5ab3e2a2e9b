"""Hashes of Kafka's Java client, which tests of partitions share."""

from __future__ import annotations

__all__ = ["MURMUR2", "murmur2"]

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""What Java's Utils.murmur2 returns, as its own tests have it."""


def murmur2(data: bytes) -> int:
    """The hash of Kafka's Java client, written down again from its description."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    state = (0x9747B28C ^ len(data)) & mask
    for start in range(0, len(data) - 3, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ (word >> 24)) * multiplier & mask
        state = (state * multiplier & mask) ^ word
    rest = data[len(data) // 4 * 4 :]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * multiplier & mask
    state = (state ^ (state >> 13)) * multiplier & mask
    return (state ^ (state >> 15)) & 0x7FFFFFFF
