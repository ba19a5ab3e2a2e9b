"""Software checks: Python and its packages, Java, the jars of jobs, the archive of Spark's classes."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.doctor.findings import Finding, failed, fine, refused, warning
from penstock.errors import PenstockError
from penstock.machine.class_archive import class_archive
from penstock.machine.jars import Jar, digest_of, jars_folder, job_jars
from penstock.machine.java import JavaHome, find_java

__all__ = [
    "check_class_archive",
    "check_jars",
    "check_java",
    "check_packages",
    "check_python",
    "check_spark_home",
    "check_worker_python",
    "installed_requirements",
]

_MIN_PYTHON: Final = (3, 11)
_PREPARE: Final = "python -m penstock.machine.setup"
_WORKER_TIMEOUT_S: Final = 60
_IN_WORKER: Final = "import penstock, sys; print('%d.%d' % sys.version_info[:2])"

_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?")
_BOUND: Final = re.compile(r"(==|!=|>=|<=|<|>)\s*([0-9][^,\s]*)")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
}
# Packages whose module has another name.
_MODULES: Final = {"paho-mqtt": "paho.mqtt", "pyyaml": "yaml", "protobuf": "google.protobuf"}


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the Python that runs this."""
    shown = ".".join(map(str, version))
    if version < _MIN_PYTHON:
        least = ".".join(map(str, _MIN_PYTHON))
        return failed("python", f"Python {shown}", f"Install penstock with Python {least} or later.")
    return fine("python", f"Python {shown}, {sys.executable}")


def installed_requirements() -> list[str] | None:
    """Return the packages that penstock requires, with their bounds; None if penstock is not installed."""
    try:
        found = importlib.metadata.requires("penstock")
    except importlib.metadata.PackageNotFoundError:
        return None
    return [text for text in found or [] if ";" not in text]


def check_packages(
    requirements: Sequence[str] | None,
    version_of: Callable[[str], str] = importlib.metadata.version,
    load: Callable[[str], Any] = importlib.import_module,
) -> Finding:
    """Check the packages that penstock requires: installed, within the bounds, and importable."""
    if requirements is None:
        return warning(
            "packages",
            "penstock runs from a folder and is not installed, so its required packages are unknown",
            "Install it with pip.",
        )
    wrong = {text: why for text in requirements if (why := _wrong_with(text, version_of, load))}
    if not wrong:
        return fine("packages", f"{len(requirements)} packages, in the versions that penstock needs")
    packages = " ".join(f"'{text}'" for text in wrong)
    return failed("packages", "; ".join(wrong.values()), f"{sys.executable} -m pip install {packages}")


def _wrong_with(text: str, version_of: Callable[[str], str], load: Callable[[str], Any]) -> str:
    """Return the problem with a required package; empty if there is no problem."""
    matched = _REQUIREMENT.match(text)
    assert matched is not None
    name, bounds = matched.group(1), matched.group(2).strip(" ()")
    try:
        version = version_of(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is missing"
    for sign, bound in _BOUND.findall(bounds):
        if not _COMPARE[sign](*_comparable(version, bound)):
            return f"{name} is {version}, and must be {bounds}"
    module = _MODULES.get(name.lower(), name.replace("-", "_"))
    try:
        load(module)
    except Exception as e:  # a package that is broken may raise anything when it is imported
        return f"{name} {version} cannot be imported ({type(e).__name__}: {e})"
    return ""


def _comparable(version: str, bound: str) -> tuple[list[int], list[int]]:
    """Return the numbers of two releases, of equal length. Pre- and post-releases count as the release."""
    parts = [[int(n) for n in re.findall(r"\d+", re.split(r"[^\d.]", text)[0])] for text in (version, bound)]
    length = max(map(len, parts))
    first, second = ([*numbers, *[0] * (length - len(numbers))] for numbers in parts)
    return first, second


def check_worker_python(
    environment: Mapping[str, str] = os.environ, run: Callable[[str], str] | None = None
) -> Finding:
    """Check the Python of Spark's workers: this one, unless PYSPARK_PYTHON names another."""
    named = environment.get("PYSPARK_PYTHON")
    if not named:
        return fine("workers", "workers run on the same Python")
    remedy = "Unset PYSPARK_PYTHON; penstock lets workers run on its own Python."
    try:
        version = (run or _worker_version)(named)
    except (OSError, subprocess.SubprocessError):
        return failed("workers", f"PYSPARK_PYTHON names {named}, which cannot import penstock", remedy)
    own = "{}.{}".format(*sys.version_info)
    if version != own:
        return failed("workers", f"PYSPARK_PYTHON names {named}, Python {version}, and this is {own}", remedy)
    return fine("workers", f"PYSPARK_PYTHON names {named}, Python {version}")


def _worker_version(python: str) -> str:
    done = subprocess.run(
        [python, "-c", _IN_WORKER], capture_output=True, text=True, timeout=_WORKER_TIMEOUT_S, check=True
    )
    return done.stdout.strip()


def check_spark_home(environment: Mapping[str, str] = os.environ, version: str | None = None) -> Finding:
    """Check the Spark that jobs start: that of the package pyspark, unless SPARK_HOME names another."""
    version = version or importlib.metadata.version("pyspark")
    named = environment.get("SPARK_HOME")
    if not named:
        return fine("spark", f"Spark {version} of the package pyspark")
    jars = sorted(path.name for path in (Path(named) / "jars").glob("spark-core_*.jar"))
    if any(name.endswith(f"-{version}.jar") for name in jars):
        return fine("spark", f"Spark {version} in SPARK_HOME, {named}")
    there = jars[0].removesuffix(".jar") if jars else "no Spark"
    return failed(
        "spark",
        f"SPARK_HOME names {named}, with {there}, and the package pyspark is {version}",
        "Unset SPARK_HOME; penstock then starts the Spark of the package.",
    )


def check_java(
    find: Callable[[], JavaHome] = find_java, environment: Mapping[str, str] = os.environ
) -> Finding:
    """Check for a Java that Spark can run on."""
    try:
        java = find()
    except PenstockError as e:
        return refused("java", e)
    found = f"Java {java.version} from {java.source}, {java.home}"
    named = environment.get("JAVA_HOME")
    if named and java.source != "JAVA_HOME":
        return warning(
            "java",
            f"{found}; JAVA_HOME names {named}, which has no Java for Spark",
            "Correct JAVA_HOME, or unset it.",
        )
    return fine("java", found)


def check_jars(
    jars: Sequence[Jar] | None = None, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Finding:
    """Check the jars that jobs need besides Spark's own. Downloads nothing."""
    try:
        folder = folder or jars_folder()
    except PenstockError as e:
        return refused("jars", e)
    jars = job_jars() if jars is None else jars
    digests = {jar: digest_of(folder / jar.file_name) for jar in jars}
    wanting = [jar for jar in jars if digests[jar] != jar.sha256]
    if not wanting:
        return fine("jars", f"{len(jars)} jars, with the pinned digests, in {folder}")
    found = "; ".join(
        f"{jar.file_name} {'is missing' if digests[jar] is None else 'is damaged'}" for jar in wanting
    )
    found = f"{found} (in {folder})"
    offline = environment.get("PENSTOCK_JARS")
    if offline:
        return _check_offline(found, wanting, Path(offline).expanduser())
    return warning(
        "jars",
        found,
        f"Nothing to do with a network: the first job downloads them, and so does {_PREPARE}. Without a network put "
        "them into a folder and name it in PENSTOCK_JARS.",
    )


def _check_offline(found: str, wanting: Sequence[Jar], offline: Path) -> Finding:
    """Check a folder of PENSTOCK_JARS for the missing jars."""
    if not offline.is_dir():
        return failed(
            "jars",
            f"{found}; PENSTOCK_JARS names {offline}, which is not a folder",
            "Correct PENSTOCK_JARS, or unset it.",
        )
    digests = {jar: digest_of(offline / jar.file_name) for jar in wanting}
    other = [jar.file_name for jar in wanting if digests[jar] not in (None, jar.sha256)]
    if other:
        return failed(
            "jars",
            f"{found}; in PENSTOCK_JARS {', '.join(other)} differs from the pinned one",
            "Find out where it came from, and replace it.",
        )
    lost = [jar.file_name for jar in wanting if digests[jar] is None]
    if lost:
        return warning(
            "jars",
            f"{found}; PENSTOCK_JARS does not have {', '.join(lost)} either",
            f"Put them into {offline}, or let the first job download them.",
        )
    return fine("jars", f"{found}; the first job copies them from PENSTOCK_JARS, {offline}")


def check_class_archive(
    find: Callable[[], JavaHome] = find_java, place: Callable[[JavaHome], Path] = class_archive
) -> Finding:
    """Check for the archive of Spark's classes, with which jobs start sooner."""
    try:
        archive = place(find())
    except PenstockError as e:
        return warning("classes", f"not checked: {e}", "Fix Java and the cache first.")
    if archive.is_file():
        return fine("classes", f"an archive of Spark's classes, {archive.stat().st_size >> 20} MB, {archive}")
    return warning(
        "classes",
        "no archive of Spark's classes for this Java, so that each job starts some seconds later",
        f"Create it with {_PREPARE}. (Some Javas cannot have one; jobs run without it.)",
    )
