"""Rooms: imports go down and in no circle, each room says what it imports, the picture is true, and nothing is long."""

from __future__ import annotations

import ast
import graphlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import draw_rooms  # noqa: E402  # it is not part of a package

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 70
TOO_LONG: dict[str, str] = {}
"""What is longer than it may be, and why: a module, or a function in one."""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module imports."""
    return draw_rooms.module_imports()


def test_no_module_imports_itself_by_way_of_others(imports: dict[str, set[str]]) -> None:
    """Neither across rooms nor within one."""
    graphlib.TopologicalSorter(imports).prepare()


def test_a_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one through a third module, and one of types alone."""
    package = tmp_path / "planted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from planted import two\n")
    (package / "two.py").write_text("from planted import three\n")
    (package / "three.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from planted import one\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(graphlib.CycleError, match=r"planted\.one"):
        graphlib.TopologicalSorter(draw_rooms.module_imports("planted")).prepare()


def test_imports_that_are_not_allowed_fail_the_checks(tmp_path: Path) -> None:
    """One that goes up, and one of Spark outside of its room."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line in (
        ("base/sizes.py", "import penstock.jobs.runner"),
        ("jobs/runner.py", "from pyspark.sql import functions"),
    ):
        path = tmp_path / "src" / "penstock" / module
        path.write_text(f"{path.read_text()}{line}\n")
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [sys.executable, program, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    broken = {line.removesuffix(" BROKEN") for line in done.stdout.splitlines() if line.endswith(" BROKEN")}
    assert {"Imports go down", "Only spark/ knows Spark"} <= broken


def test_each_room_says_what_it_is_and_imports(imports: dict[str, set[str]]) -> None:
    """In the docstring of its package: its job, what comes in and goes out, and the rooms that it imports."""
    for room, others in draw_rooms.room_imports(imports).items():
        if room == "errors":
            continue
        told = importlib.import_module(f"penstock.{room}").__doc__ or ""
        assert re.search(r"\n\nIn: .+\nOut: .+\nImports: ", told), room
        listed = " ".join(told.partition("Imports: ")[2].split()).rstrip(".").split(", ")
        assert listed == sorted(others), room


def test_the_picture_of_the_rooms_is_true(imports: dict[str, set[str]]) -> None:
    """`make rooms` has nothing to change."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    picture = draw_rooms.drawn(draw_rooms.room_imports(imports))
    assert draw_rooms.put_into(page, picture) == page, "run `make rooms`"


def test_the_table_of_rooms_has_each_room(imports: dict[str, set[str]]) -> None:
    """A newcomer finds the responsibility of every room."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    table = page.partition("| rooms | responsibility |")[2].partition("\n\n")[0]
    named = {room for row in table.splitlines() for room in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    assert named == draw_rooms.room_imports(imports).keys()


def test_modules_and_functions_are_short() -> None:
    """All but those that are listed with a reason, and those are too long indeed."""
    source = ROOT / "src" / "penstock"
    found = {}
    for path in source.rglob("*.py"):
        if not path.name.endswith("_pb2.py"):
            found |= too_long(path.relative_to(source).as_posix(), path.read_text())
    assert found.keys() == TOO_LONG.keys(), found


def test_a_long_module_and_a_long_function_are_found() -> None:
    """One line more than there may be, in a method too."""
    lines = "\n".join(f"        a = {number}" for number in range(MAX_FUNCTION_LINES))
    planted = (
        f"class One:\n    def fits(self):\n{lines[: lines.rindex(chr(10))]}\n    def long(self):\n{lines}\n"
    )
    assert too_long("one.py", planted) == {"one.py long": MAX_FUNCTION_LINES + 1}
    assert too_long("two.py", "\n" * MAX_MODULE_LINES) == {}
    assert too_long("two.py", "\n" * MAX_MODULE_LINES + "a = 1\n") == {"two.py": MAX_MODULE_LINES + 1}


def too_long(name: str, code: str) -> dict[str, int]:
    """The lines of a module and of functions in it, where there are too many."""
    lines = len(code.splitlines())
    found = {name: lines} if lines > MAX_MODULE_LINES else {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found[f"{name} {node.name}"] = lines
    return found
