"""Crashes: a run that ends at its n-th change of the file system, after which it changes nothing more."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["Crash", "crashes", "until_done"]

_CHANGES = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")


class Crash(BaseException):
    """The process is killed."""


@contextmanager
def crashes(before: int) -> Iterator[None]:
    """Raise before the change of that number, and before every later one, since nothing runs after a kill."""
    left = before

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            # What is on disk is not the point here, and waiting for it takes most of the time.
            return None if change is fsync else change(*arguments, **more)

        return changed

    fsync = os.fsync
    with pytest.MonkeyPatch.context() as patch:
        for name in _CHANGES:
            patch.setattr(os, name, counted(getattr(os, name)))
        yield


def until_done(run: Callable[[], Any]) -> int:
    """Run again and again, killed one change later each time, until a run ends; gives the number of kills."""
    for number in itertools.count():
        try:
            with crashes(number):
                run()
        except Crash:
            continue
        return number
    raise AssertionError
