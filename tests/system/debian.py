"""Debian's packages for tests, which are skipped where one is missing and cannot be installed."""

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
    """A test that cannot have its server is skipped."""
    try:
        yield
    except ExternalSystemError as e:
        pytest.skip(str(e))


def find_or_install(find: Callable[[], _Found | None], package: str, what: str) -> _Found:
    """What is found of a package, which is installed if need be; where nobody may, the test is skipped."""
    with skipped_where_missing():
        return debian_packages.find_or_install(find, package, what)
