"""The public API: small, documented, and described without Spark."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.jobs.job_loader import load_job

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example() -> Iterator[Path]:
    """The folder of the example, on the import path; what is imported from it is forgotten afterwards."""
    folder = ROOT / "examples" / "temperature_control"
    sys.path.insert(0, str(folder))
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def test_all_is_sorted_and_complete() -> None:
    """`__all__` holds each public name once, and no public class of penstock is reachable that it lacks."""
    assert ps.__all__ == sorted(set(ps.__all__), key=lambda name: (not name.isupper(), name))
    classes = {name for name in dir(ps) if name[0] != "_" and inspect.isclass(getattr(ps, name))}
    assert classes == {name for name in ps.__all__ if name[0].isupper()} - {"INGESTION_TIME"}


def test_names_come_from_where_type_checkers_find_them() -> None:
    """Each public name is imported, when it is used, from the module that the imports for type checkers name."""
    tree = ast.parse(Path(ps.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {
        name.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert sorted(named) == sorted(ps.__all__)
    for name, module in named.items():
        assert module is not None
        assert getattr(ps, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name raises the error that any other module raises."""
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Jub'"):
        getattr(ps, "Jub")  # noqa: B009  # mypy would find it


def test_penstock_alone_loads_little() -> None:
    """Importing a module of penstock loads that module, and not all public names, Arrow and NumPy."""
    script = "import sys, penstock; print([name for name in ('numpy', 'pyarrow') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def members(name: str) -> list[tuple[str, object]]:
    """A public class and its own public methods and properties."""
    kind = getattr(ps, name)
    if isinstance(kind, str):
        # What is said of a constant stands below it, where only people find it.
        return []
    found: list[tuple[str, object]] = [(name, kind)]
    for member, value in vars(kind).items() if inspect.isclass(kind) else ():
        if not member.startswith("_") and (
            inspect.isfunction(value) or isinstance(value, property | classmethod)
        ):
            found.append((f"{name}.{member}", getattr(kind, member)))
    return found


@pytest.mark.parametrize("name", ps.__all__)
def test_every_public_name_says_what_it_does(name: str) -> None:
    """In its docstring, or in that of what it overrides, whose first line is a sentence."""
    for path, member in members(name):
        text = inspect.getdoc(member)
        assert text, f"{path} has no docstring"
        first = inspect.cleandoc(text).split("\n\n")[0]
        assert first.rstrip().endswith((".", ":")), f"{path}: {first!r} is no sentence"
        assert len(first) > 15, f"{path}: {first!r} says little"


@pytest.mark.parametrize("name", ps.__all__)
def test_examples_in_docstrings_run(name: str) -> None:
    """What a docstring shows works as it stands."""
    names = {public: getattr(ps, public) for public in ps.__all__}
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for path, member in members(name):
        for test in doctest.DocTestFinder(recurse=False).find(member, path, globs=names):
            report: list[str] = []
            runner.run(test, out=report.append)
            assert not report, "".join(report)


def test_a_job_is_described_without_spark() -> None:
    """Importing penstock and describing a job imports no PySpark, so it is quick and runs anywhere.

    Nor does it import the parser of expressions, unless the job has some.
    """
    script = """
import sys
import penstock as ps
class Count(ps.ProcessFunction):
    times = ps.ValueState(int)
    def process_record(self, record, ctx):
        yield record
job = ps.Job("job")
readings = job.data_stream("readings", schema="id INT")
readings.filter(bool).key_by("id").process("count", Count(), output="id INT").sink_to("out")
job.check()
print(sorted(name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "pandas", "sqlglot")))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_jobs_in_documents_are_whole(tmp_path: Path, example: Path) -> None:
    """A job that a page shows can be copied into a file beside the example's records, and loaded."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    assert ROOT / "README.md" in pages
    path = tmp_path / "job_of_a_page.py"
    for page in pages:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            if "ps.Job(" in block:
                path.write_text(block)
                load_job(str(path)).job.check()


@pytest.mark.parametrize("name", ["job.py", "vectorised.py"])
def test_the_examples_are_whole(name: str, example: Path) -> None:
    """The example's job files load and pass the check."""
    load_job(str(example / name)).job.check()


def test_the_version_is_that_of_the_package() -> None:
    """One version, in one place that users see and one that installers see."""
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert ps.__version__ == declared.group(1)
