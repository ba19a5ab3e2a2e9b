"""Debian packages for tests; tests are skipped where a package is missing and cannot be installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from penstock.errors import ExternalSystemError
from penstock.machine import debian_packages

_Found = TypeVar("_Found")


@contextlib.contextmanager
def skipped_where_missing() -> Iterator[None]:
    """Skip the test if its server cannot be installed."""
    try:
        yield
    except ExternalSystemError as e:
        pytest.skip(str(e))


def find_or_install(find: Callable[[], _Found | None], package: str, what: str) -> _Found:
    """Return the program of a package, installing it if needed; skip the test where that is not permitted."""
    with skipped_where_missing():
        return debian_packages.find_or_install(find, package, what)
