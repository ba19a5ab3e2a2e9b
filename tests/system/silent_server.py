"""Silent server: what the conformance kit opens at a server that does not answer, with short timeouts.

Only this check has them: a server that answers may stand still for seconds on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from conformance_page import is_recording

__all__ = ["in_haste"]

_Opened = TypeVar("_Opened")


def in_haste(
    monkeypatch: pytest.MonkeyPatch,
    opening: Callable[[int], _Opened],
    *timeouts: tuple[object, str, Any],
) -> Callable[[int], _Opened]:
    """Return a function that sets timeouts (where, name, value) and opens at a port.

    They hold to the end of the test, and this is the kit's last check. Recorded runs wait the full timeouts.
    """

    def opened(port: int) -> _Opened:
        if is_recording() is None:
            for where, name, value in timeouts:
                monkeypatch.setattr(where, name, value)
        return opening(port)

    return opened
