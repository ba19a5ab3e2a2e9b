"""The interpreter for Spark's Python processes on this machine."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.machine.cache import cache_folder, write_whole

__all__ = ["interpreter_without"]


def interpreter_without(paths: Sequence[Path], forked: tuple[str, Path] | None = None) -> Path:
    """Write a program that runs this interpreter without the given entries at the front of the import path.

    The program removes the entries from PYTHONPATH if they come first there, in that order. `forked` has the name of an
    environment variable and a file: if the variable is set, the program runs that file instead of modules of PySpark
    and penstock, with all arguments and without site-packages. The program is kept in the cache.
    """
    entries = shlex.quote(":".join(map(str, paths)))
    text = (
        "#!/bin/sh\n"
        f"PYTHONPATH=${{PYTHONPATH#{entries}}}\n"
        "PYTHONPATH=${PYTHONPATH#:}\n"
        "export PYTHONPATH\n"
        f"{_fork_case(*forked) if forked else ''}"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    place = cache_folder() / "python" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not place.exists():
        write_whole(place, text.encode(), executable=True)
    return place


def _fork_case(variable: str, client: Path) -> str:
    program = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(client))}"
    return (
        f'case "$1 $2 ${variable}" in\n'
        f'  "-m pyspark."*" "?*|"-m penstock."*" "?*) exec {program} "$@" ;;\n'
        "esac\n"
    )
