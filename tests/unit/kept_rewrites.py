"""Keeps what pytest makes of test modules so that their assertions explain themselves, also where Python keeps none.

To rewrite them takes longer than all else of collecting tests, and each process of a session collects all of them.
Processes that run tests side by side share the work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    get_cache_dir,
    try_makedirs,
)
from _pytest.assertion.rewrite import assertstate_key as state_key

__all__ = ["bytecode_kept", "rewrite_share"]


@contextmanager
def bytecode_kept() -> Iterator[None]:
    """While modules are imported that do not change. Those that tests write may, within the second that is noted."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def rewrite_share(config: pytest.Config) -> None:
    """Rewrite the test modules that fall to this process, if it is one of several and nobody has done so."""
    process: dict[str, object] | None = getattr(config, "workerinput", None)
    if process is None:
        return
    files = sorted(
        path for argument in config.args for path in _test_files(Path(argument.partition("::")[0]))
    )
    number, count = int(str(process["workerid"]).removeprefix("gw")), int(str(process["workercount"]))
    state = config.stash[state_key]
    for path in files[number::count]:
        folder = get_cache_dir(path)
        kept = folder / f"{path.stem}{PYC_TAIL}"
        if try_makedirs(folder) and _read_pyc(path, kept) is None:
            source, code = _rewrite_test(path, config)
            _write_pyc(state, code, source, kept)


def _test_files(place: Path) -> list[Path]:
    return list(place.rglob("test_*.py")) if place.is_dir() else []
