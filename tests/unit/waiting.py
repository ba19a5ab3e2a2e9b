"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["await_true"]

_PATIENCE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.01


def await_true(condition: Callable[[], bool], missing: str) -> None:
    """Look until a condition holds; fail with a message after a minute."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, missing
        time.sleep(_LOOK_EVERY_S)
