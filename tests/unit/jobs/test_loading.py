"""Loading a job: it is found in its file, with the modules beside it, or the error says where to look."""

from __future__ import annotations

import os
import py_compile
import runpy
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import JobDefinitionError, SchemaError
from penstock.jobs.job_loader import load_job
from penstock.spark.session import code_archive, ship_code

JOB = "import penstock as ps\n{name} = ps.Job({name!r})\n"


@pytest.fixture(autouse=True)
def _imports_as_before(tmp_path: Path) -> Iterator[None]:
    """Unload what a test imported from its folder."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a file beside the others; return its path."""

    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


Write = Callable[[str, str], str]


def test_the_only_job_of_a_file_is_found(write: Write) -> None:
    """Its name does not matter, and two names for one job are still one job."""
    path = write("only.py", JOB.format(name="mine") + "same = mine\n")
    assert load_job(path).job.name == "mine"


def test_a_job_is_chosen_by_its_name(write: Write) -> None:
    """FILE:ATTR picks one of several jobs."""
    path = write("several.py", JOB.format(name="first") + JOB.format(name="second"))
    assert load_job(f"{path}:second").job.name == "second"
    assert load_job(f"{path}:first").job.name == "first"


@pytest.mark.parametrize(
    ("attribute", "parts"),
    [
        ("", ("several jobs", ":first, second")),
        (":third", ("no job named 'third'", "first, second")),
        (":ps", ("no job named 'ps'", "first, second")),
        (":first.name", ("no job named 'first.name'",)),
    ],
)
def test_an_ambiguous_choice_lists_the_jobs(write: Write, attribute: str, parts: tuple[str, ...]) -> None:
    """The message lists the names to choose from."""
    path = write("several.py", JOB.format(name="first") + JOB.format(name="second"))
    with pytest.raises(JobDefinitionError) as raised:
        load_job(path + attribute)
    assert all(part in str(raised.value) for part in parts), raised.value


def test_a_job_file_imports_its_neighbours(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works from any working folder; the workers get every module of the folder and nothing else."""
    monkeypatch.chdir("/")
    beside = write("beside_the_job.py", "NAME = 'from-beside'\n")
    path = write(
        "with_neighbour.py", "import penstock as ps\nfrom beside_the_job import NAME\njob = ps.Job(NAME)\n"
    )
    write("data.csv", "1,2\n")
    loaded = load_job(path)
    assert loaded.job.name == "from-beside"
    assert loaded.code == {"beside_the_job.py": Path(beside), "with_neighbour.py": Path(path)}


def test_packages_beside_the_job_file_go_with_it(write: Write, tmp_path: Path) -> None:
    """Modules and packages are packed with their relative paths; plain folders are left out.

    On this machine penstock itself is installed, and so is not in the archive.
    """
    path = write("packaged.py", "import penstock as ps\njob = ps.Job('packaged')\n")
    for name in ("rules/__init__.py", "rules/deep/__init__.py", "rules/deep/one.py", "data/not_code.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    loaded = load_job(str(path))
    assert loaded.code.keys() >= {
        "packaged.py",
        "rules/__init__.py",
        "rules/deep/__init__.py",
        "rules/deep/one.py",
    }
    assert "data/not_code.py" not in loaded.code
    for has_penstock in (False, True):
        with zipfile.ZipFile(code_archive(tmp_path, loaded.code, has_penstock=has_penstock)) as archive:
            names = set(archive.namelist())
        assert names >= loaded.code.keys()
        assert {"penstock/__init__.py", "penstock/runtime/level.py"} <= names or not has_penstock
        assert has_penstock or not any(name.startswith("penstock/") for name in names)


def test_the_archive_has_the_bytecode_that_python_keeps(tmp_path: Path) -> None:
    """Workers need not compile it; stale bytecode is left out."""
    (tmp_path / "kept.py").write_text("number = 1\n")
    bare = tmp_path / "bare.py"
    bare.write_text("number = 2\n")
    py_compile.compile(str(tmp_path / "kept.py"))
    modules = {"kept.py": tmp_path / "kept.py", "bare.py": bare}
    archive = code_archive(tmp_path / "archive", modules, has_penstock=True)
    with zipfile.ZipFile(archive) as opened:
        assert {"kept.py", "kept.pyc", "bare.py"} <= set(opened.namelist())
        assert "bare.pyc" not in opened.namelist()
    (tmp_path / "kept.py").write_text("number = 1 + 2\n")  # its bytecode is stale now
    changed = code_archive(tmp_path / "archive", {"kept.py": tmp_path / "kept.py"}, has_penstock=True)
    found = []
    for path in (archive, changed):
        sys.path.insert(0, str(path))
        found.append(runpy.run_module("kept"))
    assert [Path(each["__file__"]).name for each in found] == ["kept.pyc", "kept.py"]
    assert found[1]["number"] == 3


def test_archives_of_one_name_are_equal(tmp_path: Path) -> None:
    """Spark rejects different content under one name, and a zip stores file times, though a module may only
    have been touched.
    """
    module = tmp_path / "kept.py"
    module.write_text("number = 1\n")
    archives = []
    for folder, time_s in (("first", 1_000_000_000), ("touched", 1_000_000_100), ("again", 1_000_000_000)):
        os.utime(module, (time_s, time_s))
        archives.append(code_archive(tmp_path / folder, {"kept.py": module}, has_penstock=False))
    first, touched, again = archives
    assert touched.name != first.name == again.name
    assert first.read_bytes() == again.read_bytes()
    assert [path.name for path in (tmp_path / "first").iterdir()] == [first.name]


def test_archives_of_earlier_starts_are_removed(tmp_path: Path) -> None:
    """The session's own archives stay, since executors that start later fetch them."""
    module, folder, given = tmp_path / "kept.py", tmp_path / "code", list[str]()
    context = SimpleNamespace(
        getConf=lambda: {"spark.python.daemon.module": "penstock.spark.startup.worker_daemon"},
        addPyFile=lambda path: given.append(Path(path).name),
        _python_includes=given,
    )
    session: Any = SimpleNamespace(sparkContext=context)
    for number in range(3):
        module.write_text(f"number = {number}\n")
        ship_code(session, folder, {"kept.py": module})
        assert [path.name for path in sorted(folder.iterdir())] == sorted(given)
        if number == 1:
            given.clear()
    assert len(given) == 1


def test_a_job_may_come_from_a_neighbour(write: Write) -> None:
    """A file that only imports the job works too."""
    write("where_it_is.py", JOB.format(name="imported"))
    assert load_job(write("importing.py", "from where_it_is import imported\n")).job.name == "imported"


def test_paths_may_be_relative_or_at_home(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths and `~` work as in a shell."""
    write("here.py", JOB.format(name="here"))
    monkeypatch.chdir(tmp_path)
    assert load_job("here.py").job.name == "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_job("~/here.py:here").job.name == "here"


def test_a_changed_file_is_loaded_anew(write: Write) -> None:
    """Loading twice in one process yields the new job."""
    load_job(write("changing.py", JOB.format(name="before")))
    assert load_job(write("changing.py", "\n" + JOB.format(name="later_on"))).job.name == "later_on"


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("class_missing.py", "\nimport penstock as ps\nps.Job('a b')\n", ("class_missing.py, line 3", "'a b'")),
        ("no_colon.py", "def f()\n    pass\n", ("no_colon.py, line 1", "SyntaxError")),
        ("deep.py", "def f():\n    return 1 / 0\nf()\n", ("deep.py, line 2", "ZeroDivisionError")),
        ("leaves.py", "import sys\nsys.exit(0)\n", ("leaves.py, line 2", "this ends Python", "only describes a job")),
        ("with-dash.py", "", ("with-dash.py", "rename it")),
        ("9lives.py", "", ("9lives.py", "rename it")),
        ("random.py", JOB.format(name="job"), ("random.py", "rename it")),
        ("penstock.py", JOB.format(name="job"), ("penstock.py", "rename it")),
        ("numpy.py", JOB.format(name="job"), ("numpy.py", "rename it")),
        ("pyspark.py", JOB.format(name="job"), ("pyspark.py", "rename it")),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_loaded_is_named(
    write: Write, name: str, text: str, parts: tuple[str, ...]
) -> None:
    """The message has the file and, where there is one, the line."""
    with pytest.raises(JobDefinitionError) as raised:
        load_job(write(name, text))
    assert all(part in str(raised.value) for part in parts), raised.value


def test_an_error_in_a_neighbour_points_into_the_job_file(write: Write) -> None:
    """The line is that of the import; the text is the neighbour's error."""
    write("broken_neighbour.py", "x = = 1\n")
    with pytest.raises(JobDefinitionError, match=r"imports_it\.py, line 2: SyntaxError"):
        load_job(write("imports_it.py", "\nimport broken_neighbour\n"))


def test_penstocks_errors_keep_their_class(write: Write) -> None:
    """A wrong schema in a job file stays a SchemaError, with the line."""
    text = "import penstock as ps\njob = ps.Job('j')\njob.data_stream('s', schema='a NUMBER')\n"
    with pytest.raises(SchemaError, match=r"wrong_schema\.py, line 3: Stream 's'.*'number'"):
        load_job(write("wrong_schema.py", text))


@pytest.mark.parametrize("name", ["no_such_job.py", ".", "no/such/folder/job.py"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    """A missing file and a folder are named as they were given."""
    target = str(tmp_path / name)
    with pytest.raises(JobDefinitionError) as raised:
        load_job(target)
    assert f"no job file {target}" in str(raised.value)
