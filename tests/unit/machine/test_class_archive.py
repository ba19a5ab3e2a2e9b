"""The archive of Spark's classes: which one is used, and with which JVM options. `make setup` creates a real
one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.machine import class_archive as archives
from penstock.machine.class_archive import archive_options, class_archive, make_class_archive
from penstock.machine.jars import pyspark_folder
from penstock.machine.java import JavaHome


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JavaHome:
    """Return a Java, with an empty cache."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return JavaHome(tmp_path / "java", 17, "PATH")


def test_a_jvm_does_without_an_archive_that_is_not_there(java: JavaHome) -> None:
    """No option names a missing file."""
    assert archive_options(java) == []


def test_a_jvm_uses_the_archive_that_is_there(java: JavaHome) -> None:
    """Its messages go to standard error."""
    class_archive(java).touch()
    assert f"-XX:SharedArchiveFile={class_archive(java)}" in archive_options(java)
    assert "-Xlog:all=warning:stderr" in archive_options(java)
    # Otherwise each JVM would have a modified copy of the whole archive.
    assert "-XX:ArchiveRelocationMode=0" in archive_options(java)


def test_another_java_has_another_archive(java: JavaHome) -> None:
    """This includes a Java that was updated in place."""
    before = class_archive(java)
    (java.home / "release").write_text('JAVA_VERSION="17.0.16"\n')
    assert class_archive(java) != before


def test_an_archive_is_made_once_and_those_of_no_use_are_removed(
    java: JavaHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job that runs to its end creates it."""
    runs = []

    def run(folder: Path, options: list[str]) -> bool:
        runs.append(options)
        Path(options[0].removeprefix("-XX:ArchiveClassesAtExit=")).write_bytes(b"classes")
        return True

    monkeypatch.setattr(archives, "_run_job", run)
    # One for another Java, one for a removed Java, and one in use.
    folder = class_archive(java).parent
    (tmp_path / "elsewhere").touch()
    for name, owner in {
        "mine": pyspark_folder(),
        "gone": tmp_path / "gone",
        "elsewhere": tmp_path / "elsewhere",
    }.items():
        (folder / f"spark-classes-{name}.jsa").touch()
        (folder / f"spark-classes-{name}.owner").write_text(str(owner))
    assert make_class_archive(java) == class_archive(java)
    assert make_class_archive(java) == class_archive(java)
    assert class_archive(java).read_bytes() == b"classes"
    assert len(runs) == 1
    kept = class_archive(java).with_name("spark-classes-elsewhere.jsa")
    assert sorted(folder.glob("*.jsa")) == sorted([class_archive(java), kept])
    assert sorted(folder.iterdir()) == sorted(
        [*folder.glob("*.jsa"), *(path.with_suffix(".owner") for path in folder.glob("*.jsa"))]
    )


def test_a_java_that_keeps_no_archive_is_done_without(
    java: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs, and no file remains."""
    monkeypatch.setattr(archives, "_run_job", lambda folder, options: True)
    assert make_class_archive(java) is None
    assert archive_options(java) == []
