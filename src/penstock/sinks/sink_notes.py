"""Sink notes: the notes of sinks in the checkpoint about what they have written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import CheckpointError

__all__ = ["noting_errors"]


@contextmanager
def noting_errors(stream: str) -> Iterator[None]:
    """Turn an error of the system into one that says which sink cannot note what it has written."""
    try:
        yield
    except OSError as e:
        raise CheckpointError(
            f"The checkpoint cannot record what the sink {stream!r} has written: {e}. "
            "Choose a folder that can be written with --checkpoint."
        ) from e
