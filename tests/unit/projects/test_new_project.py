"""New projects: valid names and folders, and consistency of the template's job, sample and README.

Its tests run on Spark in tests/system/test_new_projects.py.
"""

from __future__ import annotations

import doctest
import errno
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

import penstock
from penstock.bindings.parse import parse_binding
from penstock.cli import app
from penstock.commands.command_catalog import command_catalog
from penstock.commands.command_target import parse_target
from penstock.jobs.job_loader import load_job
from penstock.projects import new_project
from penstock.projects.new_project import NewProject, ProjectError, make_project, package_of
from penstock.server.runs.definitions import Catalog
from penstock.testing.batch_runner import BatchRunner

FILES = {
    ".gitignore",
    "README.md",
    "job.py",
    "pyproject.toml",
    "sample/limits/1.jsonl",
    "sample/readings/1.jsonl",
    "tests/test_job.py",
    "tests/test_watch.py",
    "water_level.yaml",
    "water_level/__init__.py",
    "water_level/watch.py",
}


@pytest.fixture
def project(tmp_path: Path) -> NewProject:
    return make_project(tmp_path / "water-level")


@pytest.fixture
def running(project: NewProject) -> Iterator[tuple[BatchRunner, ModuleType]]:
    """Provide the project's job without Spark, and the module of its step; both are unloaded afterwards."""
    job = load_job(str(project.folder / "job.py")).job
    yield BatchRunner(job, parallelism=2), sys.modules["water_level.watch"]
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(project.folder)):
            del sys.modules[name]


def sample(project: NewProject, stream: str, kind: type) -> list[Any]:
    lines = (project.folder / "sample" / stream / "1.jsonl").read_text().splitlines()
    return [msgspec.json.decode(line, type=kind) for line in lines]


def readme_lines(project: NewProject, begin: str) -> list[str]:
    return [
        line for line in (project.folder / "README.md").read_text().splitlines() if line.startswith(begin)
    ]


def penstock_init(*arguments: object) -> Result:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["init", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# What is made


def test_a_project_has_the_files_of_the_template_under_its_own_name(project: NewProject) -> None:
    """All descriptions are right, and no name of the template is left."""
    assert (project.name, project.package) == ("water-level", "water_level")
    there = {str(p.relative_to(project.folder)): p for p in project.folder.rglob("*") if p.is_file()}
    assert set(there) == set(project.files) == FILES
    for path in there.values():
        assert not re.search("project.name|0[.]0[.]0", path.read_text()), path
    declared = (project.folder / "pyproject.toml").read_text()
    assert 'name = "water-level"' in declared
    assert f'"penstock>={penstock.__version__}"' in declared


def test_the_sample_gives_what_the_readme_shows(
    project: NewProject, running: tuple[BatchRunner, ModuleType]
) -> None:
    """The order is that of the page."""
    job, step = running
    result = job.run(
        {
            "readings": [("1.jsonl", sample(project, "readings", step.Reading))],
            "limits": [("1.jsonl", sample(project, "limits", step.Limit))],
        }
    )
    shown = [msgspec.json.decode(line, type=step.Alert) for line in readme_lines(project, "{")]
    assert len(shown) == 2
    assert result.output("alerts") == shown
    assert result.dead_letters == []


def test_the_commands_of_the_readme_steer_the_job(
    project: NewProject, running: tuple[BatchRunner, ModuleType]
) -> None:
    """Their setting and state exist, and change the output for readings."""
    job, step = running
    entry = command_catalog(
        "water-level", job.plan.accepting, parse_binding("commands", "jsonl:/no", "control")
    )
    commands = []
    for number, line in enumerate(readme_lines(project, "penstock control send")):
        words = shlex.split(line)
        options = dict(zip(words[4::2], words[5::2], strict=False))
        target = parse_target(options["--target"], None, entry)
        payload = msgspec.Raw(options["--json"].encode())
        commands.append(
            msgspec.json.encode(
                {"id": str(number), "kind": options["--kind"], "target": target, "payload": payload}
            )
        )
    assert len(commands) == 3
    readings = [step.Reading("boiler", 76.0)]
    result = job.run({"commands": [("c", commands)], "readings": [("r", readings)]})
    assert [r.status for r in result.receipts if r.status not in ("ACCEPTED", "VALIDATED")] == ["APPLIED"] * 3
    assert result.output("alerts") == [step.Alert("boiler", 76.0, 1)]


def test_the_commands_of_the_readme_are_those_of_penstock(project: NewProject) -> None:
    """Each has valid options, and binds all streams of the job."""
    lines = [shlex.split(line)[1:] for line in readme_lines(project, "penstock ")]
    of_a_checkpoint = ["run", "run", "control", "control", "state", "stop"]
    of_a_server = ["serve", "submit", "list", "control", "stop"]
    assert [words[0] for words in lines] == of_a_checkpoint + of_a_server
    for words in lines:
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        context = command.make_context("penstock", words)
        if command.name == "run":
            assert [uri.partition("=")[0] for uri in context.params["define"]] == [
                "readings",
                "limits",
                "alerts",
            ]


def test_a_server_can_run_the_project(project: NewProject) -> None:
    """The definition binds what the README binds."""
    definitions, problems = Catalog([project.folder]).definitions()
    assert problems == []
    (definition,) = definitions.values()
    assert (definition.id, definition.name) == ("water_level", "water-level")
    (line,) = [line for line in readme_lines(project, "penstock run") if "--checkpoint" in line]
    bindings = dict(word.split("=", 1) for word in shlex.split(line) if "=jsonl:" in word)
    assert definition.settings["bindings"] == bindings
    (started,) = readme_lines(project, "penstock submit")
    assert started.split()[-1] == definition.id


# What is refused


@pytest.mark.parametrize(
    ("name", "package"), [("a", "a"), ("Rooms2", "rooms2"), ("water-level", "water_level"), ("a_b", "a_b")]
)
def test_a_name_becomes_a_package(name: str, package: str) -> None:
    """It is lower case, with underscores."""
    assert package_of(name) == package


@pytest.mark.parametrize("name", ["", "2rooms", "-a", "a-", "a.b", "a b", "räume", "a/b", "class", "a'b"])
def test_what_cannot_be_a_package_is_refused(name: str) -> None:
    """The error says what a name may contain."""
    with pytest.raises(ProjectError, match="cannot be the name of a package"):
        package_of(name)


@pytest.mark.parametrize("name", ["json", "penstock", "pyarrow", "Types", "job", "tests", "out", "state"])
def test_what_would_hide_something_is_refused(name: str) -> None:
    """It may be an installed module, or one of the project's own."""
    with pytest.raises(ProjectError, match=f"would hide another module or folder named {name.lower()}"):
        package_of(name)


def test_a_folder_that_is_not_empty_is_refused(project: NewProject, tmp_path: Path) -> None:
    """The folder is not changed; an empty one is accepted."""
    (project.folder / "job.py").write_text("mine")
    with pytest.raises(ProjectError, match="is not empty"):
        make_project(project.folder)
    assert (project.folder / "job.py").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert make_project(tmp_path / "empty").package == "empty"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """It is not replaced."""
    (tmp_path / "rooms").touch()
    with pytest.raises(ProjectError, match=r"cannot be written to .*rooms \(Not a directory\)"):
        make_project(tmp_path / "rooms")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the system's reason."""

    def refuse(self: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(ProjectError, match="No space left on device"):
        make_project(tmp_path / "rooms")


def test_the_example_of_a_package_runs() -> None:
    """The docstring's example runs unchanged."""
    assert doctest.testmod(new_project).failed == 0


# The command


def test_the_command_says_how_to_go_on(tmp_path: Path) -> None:
    """Standard output is a runnable command."""
    result = penstock_init(tmp_path / "rooms")
    assert result.exit_code == 0
    assert result.stdout == f"cd {tmp_path}/rooms && python -m pytest\n"
    assert "11 files" in result.stderr


def test_the_command_tells_machines_what_it_made(tmp_path: Path) -> None:
    """In one line."""
    made = json.loads(penstock_init(tmp_path / "water-level", "-o", "json").stdout)
    assert set(made.pop("files")) == FILES
    assert made == {"name": "water-level", "package": "water_level", "folder": str(tmp_path / "water-level")}


def test_the_command_takes_a_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is created in the working folder, or is the working folder."""
    monkeypatch.chdir(tmp_path)
    assert penstock_init("rooms").stdout.startswith("cd rooms ")
    assert (tmp_path / "rooms" / "job.py").is_file()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert penstock_init(".").exit_code == 0
    assert 'ps.Job("here")' in (tmp_path / "here" / "job.py").read_text()


def test_the_command_refuses_in_a_sentence(tmp_path: Path) -> None:
    """The exit code is that of wrong use, and nothing is created."""
    result = penstock_init(tmp_path / "2rooms")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: '2rooms' cannot be the name of a package.")
    assert list(tmp_path.iterdir()) == []


# The template


def test_the_template_is_in_the_package() -> None:
    """Wheels contain the whole package folder except what git ignores, and so these files."""
    root = Path(__file__).parents[3]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/penstock", "src/pytest_penstock"]}
    ignored = (root / ".gitignore").read_text().split()
    template = Path(new_project.__file__).with_name("template")
    for path in template.rglob("*"):
        if "__pycache__" not in path.parts:
            names = [path.name, *(f"{part}/" for part in path.relative_to(template).parts)]
            assert not [(name, rule) for name in names for rule in ignored if fnmatch(name, rule)]
