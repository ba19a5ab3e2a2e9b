"""Threads of a process decode values of a type for the first time at once."""

from __future__ import annotations

import subprocess
import sys

# Types have other types in fields: their description is made of several parts, between which threads change.
_PROGRAM = """
import dataclasses, sys, threading
import msgspec
from threads_at_once import call_at_once

sys.setswitchinterval(1e-6)
for _ in range(300):

    class Piece(msgspec.Struct, array_like=True):
        name: str
        sizes: list[int]

    @dataclasses.dataclass
    class Place:
        group: int
        pieces: list[Piece]

    class Head(msgspec.Struct, array_like=True):
        number: int
        pieces: list[Piece]
        places: dict[str, Place] = {}

    head = Head(1, [Piece("a", [1])], {"b": Place(2, [Piece("c", [])])})
    packed, text = msgspec.msgpack.encode(head), msgspec.json.encode(head)
    ready = threading.Barrier(3)
    found = []

    def decode(read):
        ready.wait()
        found.append(read())

    call_at_once([
        lambda: decode(lambda: msgspec.msgpack.decode(packed, type=Head)),
        lambda: decode(lambda: msgspec.json.decode(text, type=Head)),
        lambda: decode(lambda: msgspec.convert(msgspec.json.decode(text), Head)),
    ])
    assert found == [head] * 3, found
"""


def test_threads_decode_values_of_a_new_type_at_once() -> None:
    """Slots that open their state at once, and requests to a server, do so. Older msgspec ended the process."""
    path = ":".join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr or done.returncode
