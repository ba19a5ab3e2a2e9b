"""The interpreter for Spark's Python processes on this machine."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.local.cache import cache_folder

__all__ = ["interpreter_without"]


def interpreter_without(paths: Sequence[Path]) -> Path:
    """A program that runs this interpreter without the given entries at the front of the import path.

    They are taken from PYTHONPATH when they stand there first and in that order. The program is kept in the cache.
    """
    entries = shlex.quote(":".join(map(str, paths)))
    text = (
        "#!/bin/sh\n"
        f"PYTHONPATH=${{PYTHONPATH#{entries}}}\n"
        "PYTHONPATH=${PYTHONPATH#:}\n"
        "export PYTHONPATH\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    place = cache_folder() / "python" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f"{place.name}-{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.rename(place)
    return place
