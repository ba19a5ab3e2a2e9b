"""Files of skops, which is imported when the first one is made: its import looks through all modules, for 2 s."""

from __future__ import annotations

__all__ = ["skops_file"]


def skops_file(model: object) -> bytes:
    """A file with a model of scikit-learn."""
    import skops.io

    return bytes(skops.io.dumps(model))
