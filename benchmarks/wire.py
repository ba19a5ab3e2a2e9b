"""Wire: the example's protobuf messages to bytes and back, in bulk, at a fraction of a microsecond for each.

Loader and probe share two cores with the job under test, so what they cost for a record matters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.workload import OFF, ON, Codes, Floats

__all__ = ["decode_commands", "decode_packed", "reading_messages", "setting_message"]

_SENSOR: Final = 0x08  # field 1, a varint
_COMMAND: Final = 0x10  # field 2, a varint
_MOST_VARINT_BYTES: Final = 5  # of a sensor, which is at most 2**31 - 1


def reading_messages(sensors: Iterable[int], temperatures: Floats) -> list[bytes]:
    """Return the wire form of readings (`SensorData`), in order."""
    raw = temperatures.astype("<f8").tobytes()
    begins = range(0, len(raw), 8)
    return [_reading_head(sensor) + raw[i : i + 8] for sensor, i in zip(sensors, begins, strict=True)]


def setting_message(sensor: int, desired: float, delta: float) -> bytes:
    """Return the wire form of a setting (`TemperatureControl`) with the same delta to both sides."""
    low, high = np.float64(desired).tobytes(), np.float64(delta).tobytes()
    return _sensor(sensor) + b"\x11" + low + b"\x19" + high + b"\x21" + high


def decode_commands(values: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], Codes]:
    """Return the sensor and the command (ON or OFF) of each `HeaterControl`, in order.

    Raises ValueError for bytes that are no such message.
    """
    return decode_packed(b"".join(values), np.fromiter(map(len, values), np.int64, len(values)))


def decode_packed(joined: bytes, sizes: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int32], Codes]:
    """Decode as `decode_commands`: messages that follow each other without a gap, of these lengths."""
    lengths = sizes.astype(np.int64)
    ends = np.cumsum(lengths)
    # Bytes behind the last message, so that each position below can be looked at.
    data = np.frombuffer(joined + bytes(_MOST_VARINT_BYTES + 2), np.uint8)
    at = ends - lengths
    sensors = np.zeros(len(lengths), np.int64)
    going = (at < ends) & (data[at] == _SENSOR)
    at = at + going
    for byte in range(_MOST_VARINT_BYTES):
        sensors |= np.where(going, (data[at] & 0x7F).astype(np.int64) << (7 * byte), 0)
        at, going = at + going, going & (data[at] >= 0x80)
    # A field with the default value (sensor 0, On) is not on the wire.
    given = (at < ends) & (data[at] == _COMMAND)
    off = given & (data[at + 1] == 1)
    if (at + 2 * given != ends).any():
        raise ValueError("A record on the topic of commands is no HeaterControl.")
    return sensors.astype(np.int32), np.where(off, OFF, ON).astype(np.int8)


@functools.cache
def _reading_head(sensor: int) -> bytes:
    """Return all of a reading but the eight bytes of its temperature."""
    return _sensor(sensor) + b"\x11"


def _sensor(number: int) -> bytes:
    """Return field 1; the default value is left out, as protobuf does."""
    if number == 0:
        return b""
    found = bytearray((_SENSOR,))
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
