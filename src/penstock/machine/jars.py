"""Jars: fetch the pinned Java libraries once, and check their digests."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.machine.cache import cache_folder
from penstock.machine.java import find_java

__all__ = [
    "Jar",
    "JarResolutionError",
    "bare_filesystem_jar",
    "digest_of",
    "jars_folder",
    "job_jars",
    "kafka_broker_jars",
    "pyspark_folder",
    "read_pinned_jars",
    "s3_jars",
]

_TABLE: Final = Path(__file__).with_name("pinned_jars.txt")
_FETCH_TIMEOUT_S: Final = 900


class JarResolutionError(PenstockError):
    """A Java library that penstock needs could not be fetched, or is not the pinned one."""

    fault = "external"
    retryable = True


@dataclass(frozen=True)
class Jar:
    """A pinned jar by its coordinates, with the SHA-256 of its content."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return f"{self.name}-{self.version}.jar"


@functools.cache
def read_pinned_jars() -> dict[str, tuple[Jar, ...]]:
    """Return the pinned jars by set: `filesystem`, `broker` and `s3`."""
    found: dict[str, tuple[Jar, ...]] = {}
    for line in _TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            group, *fields = line.split()
            found[group] = (*found.get(group, ()), Jar(*fields))
    return found


def job_jars() -> tuple[Jar, ...]:
    """Return the jars that jobs need besides Spark's own."""
    return read_pinned_jars()["filesystem"]


def jars_folder() -> Path:
    """Return the folder of the jars that jobs need."""
    return cache_folder() / "jars"


def bare_filesystem_jar() -> Path:
    """Return the path of a local file system for Hadoop that does not fork a process for each file.

    Raises:
        JarResolutionError: it is not in the cache, and could not be fetched.

    """
    return resolve(read_pinned_jars()["filesystem"], jars_folder())[0]


def kafka_broker_jars() -> Path:
    """Return a folder with the jars of an Apache Kafka broker, and nothing else.

    Raises:
        JarResolutionError: they are not in the cache, and could not be fetched.

    """
    jars = read_pinned_jars()["broker"]
    version = next(jar.version for jar in jars if jar.name == "kafka_2.13")
    folder = cache_folder() / f"kafka-broker-{version}"
    resolve(jars, folder)
    return folder


def s3_jars() -> list[Path]:
    """Return the paths of the jars with which Spark reads and writes S3.

    Raises:
        JarResolutionError: they are not in the cache, and could not be fetched.

    """
    jars = read_pinned_jars()["s3"]
    version = next(jar.version for jar in jars if jar.name == "hadoop-aws")
    return resolve(jars, cache_folder() / f"hadoop-aws-{version}")


def resolve(jars: Sequence[Jar], folder: Path) -> list[Path]:
    """Return the jars in a folder of the cache. Missing or damaged ones are copied from PENSTOCK_JARS, else fetched.

    Raises:
        JarResolutionError: a jar could not be fetched, or is not the pinned one.

    """
    if _missing(jars, folder):
        with _lock(folder.name):
            missing = _missing(jars, folder)
            folder.mkdir(parents=True, exist_ok=True)
            missing = _copy_from_offline(missing, folder)
            if missing:
                _fetch(missing, folder)
    return [folder / jar.file_name for jar in jars]


def _missing(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    """Return the jars that are missing or not the pinned ones. The digests of a broker's jars take some 30 ms."""
    return [jar for jar in jars if digest_of(folder / jar.file_name) != jar.sha256]


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it does not exist."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _copy_from_offline(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    """Copy jars from the offline folder, and return those that it does not have."""
    named = os.environ.get("PENSTOCK_JARS")
    if not named:
        return list(jars)
    offline = Path(named).expanduser()
    if not offline.is_dir():
        raise JarResolutionError(
            f"PENSTOCK_JARS names {offline}, which is not a folder. Correct it or unset it."
        )
    present = [jar for jar in jars if (offline / jar.file_name).is_file()]
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        for jar in present:
            copied = Path(shutil.copy(offline / jar.file_name, temporary))
            _check(copied, jar, str(offline / jar.file_name)).replace(folder / jar.file_name)
    return [jar for jar in jars if jar not in present]


def _fetch(jars: Sequence[Jar], folder: Path) -> None:
    """Fetch jars into a folder. Each appears there complete and checked."""
    # On the same file system as the folder, so that a rename moves them.
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        out = Path(temporary) / "out"
        _note(f"Fetching {len(jars)} Java libraries into {folder} (once)")
        cause = _run_ivy(jars, Path(temporary), out)
        lost = [jar.file_name for jar in jars if not (out / jar.file_name).is_file()]
        if lost:
            named = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
            raise JarResolutionError(
                f"Java libraries could not be fetched: {named} ({cause}). Check the network and run again; or put "
                f"the jars into a folder and name it in PENSTOCK_JARS. They are kept in {folder}."
            )
        for jar in jars:
            _check(out / jar.file_name, jar, jar.file_name).replace(folder / jar.file_name)


def _check(path: Path, jar: Jar, origin: str) -> Path:
    found = digest_of(path)
    if found != jar.sha256:
        raise JarResolutionError(
            f"{origin} is not the pinned {jar.name} {jar.version}: its SHA-256 is {found}, not {jar.sha256}. It was "
            "not used. Find out where it came from."
        )
    return path


def ivy_module(jars: Sequence[Jar]) -> str:
    """Return an Ivy file that requests these jars without their dependencies."""
    dependencies = "".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" transitive="false" '
        'conf="*->master"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="penstock" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )


def _run_ivy(jars: Sequence[Jar], temporary: Path, out: Path) -> str:
    """Resolve with PySpark's Ivy, which knows the public repository. Return its main complaint, if it failed."""
    ivy = temporary / "ivy.xml"
    ivy.write_text(ivy_module(jars))
    command = [str(find_java().java), "-cp", f"{pyspark_folder()}/jars/*", "org.apache.ivy.Main"]
    command += ["-cache", str(temporary / "cache"), "-ivy", str(ivy)]
    command += ["-retrieve", f"{out}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {_FETCH_TIMEOUT_S} s"
    return ivy_complaint(done.stdout + done.stderr)


def ivy_complaint(output: str) -> str:
    """Return the line of Ivy's output that best explains why it failed."""
    lines = [line.strip(" :\t") for line in output.splitlines()]
    for sign in ("SSLHandshake", "UnknownHost", "ConnectException", "Server access", "not found", "rror:"):
        for line in lines:
            if sign in line:
                return line[:300]
    return "no answer from the repository"


def pyspark_folder() -> Path:
    """Return the folder of PySpark, which has its jars, without importing it. Raises JarResolutionError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarResolutionError("PySpark is not installed; run 'make setup'.")
    return Path(spec.origin).parent


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Lock a folder, so that only one process at a time fills it."""
    with (cache_folder() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _note(text: str) -> None:
    sys.stderr.write(f"{text} ...\n")
    sys.stderr.flush()
