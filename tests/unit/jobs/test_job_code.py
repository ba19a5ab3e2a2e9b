"""The user's modules are shipped to the workers under the names by which they were imported."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.jobs.job_code import find_loaded_modules


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder; modules that a test imports from it are unloaded after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


def _import(folder: Path, name: str) -> object:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _write(path: Path, text: str = "def function(): pass\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_modules_keep_the_names_by_which_they_were_imported(root: Path) -> None:
    """The name is kept even if another folder of the import path contains the module's folder."""
    _write(root / "above_the_jobs.py")
    _write(root / "below" / "code_of_a_job.py")
    above = _import(root, "above_the_jobs")
    below = _import(root / "below", "code_of_a_job")
    assert find_loaded_modules([above.function, below.function]) == {  # type: ignore[attr-defined]
        "above_the_jobs.py": root / "above_the_jobs.py",
        "code_of_a_job.py": root / "below" / "code_of_a_job.py",
    }


def test_a_package_goes_with_its_parents(root: Path) -> None:
    """Shipped are a function's package and its imports from the same folder; modules that were not imported
    are not.
    """
    _write(root / "rules_of_a_job" / "__init__.py", "")
    _write(root / "rules_of_a_job" / "deep" / "__init__.py", "")
    _write(root / "rules_of_a_job" / "deep" / "one.py", "import beside_the_rules\ndef function(): pass\n")
    _write(root / "beside_the_rules.py")
    _write(root / "never_imported.py")
    module = _import(root, "rules_of_a_job.deep.one")
    assert list(find_loaded_modules([module.function])) == [  # type: ignore[attr-defined]
        "beside_the_rules.py",
        "rules_of_a_job/__init__.py",
        "rules_of_a_job/deep/__init__.py",
        "rules_of_a_job/deep/one.py",
    ]


def test_installed_modules_stay(root: Path) -> None:
    """Installed modules are not shipped: the workers have them."""
    _write(root / "alone.py", "import json, pytest, penstock\ndef function(): pass\n")
    assert list(find_loaded_modules([_import(root, "alone").function])) == ["alone.py"]  # type: ignore[attr-defined]


def test_functions_that_sql_calls_go_along(root: Path) -> None:
    """Functions of values, of columns and of windows are shipped, each from its own folder."""
    text = "import penstock as ps\ndef double(x: int) -> int: return 2 * x\n"
    _write(root / "values" / "rules_of_values.py", text)
    _write(root / "columns" / "rules_of_columns.py", "def same(x): return x\n")
    _write(
        root / "windows" / "rules_of_windows.py",
        "import penstock as ps\n"
        "class Total(ps.AggregateFunction[int, int, int]):\n"
        "    def create_accumulator(self) -> int: return 0\n"
        "    def add(self, value: int, total: int) -> int: return total + value\n"
        "    def get_result(self, total: int) -> int: return total\n",
    )
    values: Any = _import(root / "values", "rules_of_values")
    columns: Any = _import(root / "columns", "rules_of_columns")
    windows: Any = _import(root / "windows", "rules_of_windows")
    job = ps.Job("called")
    job.data_stream("numbers", schema="n INT")
    same = ps.SqlFunction(columns.same, takes=("INT",), returns="INT", on_columns=True)
    functions = {"double": values.double, "same": same, "total": windows.Total()}
    job.sql("INSERT INTO out SELECT double(same(n)) AS n FROM numbers", functions=functions)
    assert list(find_loaded_modules(job.called_functions)) == [
        "rules_of_columns.py",
        "rules_of_values.py",
        "rules_of_windows.py",
    ]
    with pytest.raises(ps.PenstockError):
        job.sql("SELECT nothing FROM numbers", functions={"double": values.double})
    assert len(job.called_functions) == 3
