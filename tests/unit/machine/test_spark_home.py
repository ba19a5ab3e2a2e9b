"""Spark's folder for drivers on clusters: it is complete, and Python compiles nothing of PySpark."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from threads_at_once import call_at_once

from penstock.machine.jars import pyspark_folder
from penstock.machine.spark_home import quick_spark_home
from penstock.spark.startup.jvm_start import JvmStart, start_environment

PROGRAM = "import pyspark.worker, pyspark.sql.functions.builtin as one; print(one.__cached__)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "the cache"))
    return tmp_path / "the cache"


@pytest.fixture
def small_home(tmp_path: Path) -> Path:
    """A folder like Spark's, with few files."""
    home = tmp_path / "spark"
    for name in ("bin/spark-submit", "jars/a.jar", "conf/one", "python/run", "python/lib/py4j.zip"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    with zipfile.ZipFile(home / "python/lib/pyspark.zip", "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/ml/__init__.py", "")
    return home


def files_of(home: Path) -> dict[str, str]:
    """Return the small files of a folder, through all links."""
    found = subprocess.check_output(["find", "-L", str(home), "-type", "f"], text=True).split("\n")
    paths = [Path(name) for name in found if name and not name.endswith("pyspark.zip")]
    return {str(path.relative_to(home)): path.read_text() for path in paths}


def test_sparks_own_pyspark_is_imported_from_bytecode() -> None:
    """The Python has nothing else on its path."""
    archive = quick_spark_home(pyspark_folder()) / "python/lib/pyspark.zip"
    out = subprocess.check_output(
        [sys.executable, "-c", PROGRAM], env={"PYTHONPATH": str(archive)}, text=True
    )
    assert out == f"{archive}/pyspark/sql/functions/builtin.pyc\n"
    with zipfile.ZipFile(archive) as new, zipfile.ZipFile(pyspark_folder() / "python/lib/pyspark.zip") as old:
        names = set(new.namelist())
        assert {name for name in names if not name.endswith(".pyc")} == set(old.namelist())
        assert "pyspark/ml/base.pyc" not in names


def test_all_else_of_sparks_folder_is_there(small_home: Path) -> None:
    quick = quick_spark_home(small_home)
    assert files_of(quick) == files_of(small_home)
    assert len(files_of(quick)) == 5
    # Changes in a folder of Spark's take effect.
    (small_home / "jars/b.jar").write_text("later")
    assert files_of(quick) == files_of(small_home)


def test_a_new_folder_or_another_zip_counts(small_home: Path) -> None:
    first = quick_spark_home(small_home)
    assert quick_spark_home(small_home) == first
    (small_home / "sbin").mkdir()
    (small_home / "sbin/start").write_text("start")
    second = quick_spark_home(small_home)
    assert files_of(second) == files_of(small_home)
    with zipfile.ZipFile(small_home / "python/lib/pyspark.zip", "w") as archive:
        archive.writestr("pyspark/version.py", "version = 2")
    with zipfile.ZipFile(quick_spark_home(small_home) / "python/lib/pyspark.zip") as archive:
        assert archive.namelist() == ["pyspark/version.py", "pyspark/version.pyc"]


def test_processes_that_start_at_once_get_the_same_folder(small_home: Path, cache: Path) -> None:
    found: list[Path] = []
    call_at_once([lambda: found.append(quick_spark_home(small_home))] * 4)
    assert len(set(found)) == 1
    assert [path.name for path in (cache / "spark").iterdir()] == [found[0].name]


def test_a_folder_without_that_zip_stays_as_it_is(tmp_path: Path) -> None:
    assert quick_spark_home(tmp_path) == tmp_path


def test_drivers_of_clusters_start_with_it(small_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any Spark; with local tasks penstock's own interpreter does the same."""
    monkeypatch.setenv("SPARK_HOME", str(small_home))
    assert start_environment(JvmStart("spark://here:1")) == {"SPARK_HOME": str(quick_spark_home(small_home))}
    assert start_environment(JvmStart("local[2]")) == {}
