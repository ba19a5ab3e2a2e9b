"""Runs commands in a Python of their own, and tells which modules they have loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["loaded_by"]

_PROGRAM = """
import json
import sys

from penstock.cli import app

found = []
for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    try:
        app()
    except SystemExit as e:
        found.append(e.code)
print()
print(json.dumps([found, sorted(sys.modules)]))
"""


def loaded_by(*commands: Sequence[object]) -> tuple[list[int], set[str]]:
    """The exit codes of commands that run one after the other, and the modules that are loaded when all have run."""
    arguments = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    codes, modules = json.loads(done.stdout.splitlines()[-1])
    return codes, set(modules)
