"""New SQL projects: consistency of the template's job, sample, README and definition.

Their tests run on Spark in tests/system/test_new_projects.py.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from penstock.cli import app
from penstock.jobs.job_loader import load_job
from penstock.projects.new_project import NewProject, make_project
from penstock.server.runs.definitions import Catalog
from penstock.testing import JobHarness

FILES = {
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "sample/readings/1.jsonl",
    "tests/test_job.py",
    "tests/test_statements.py",
    "water_level.sql",
    "water_level.yaml",
}


@pytest.fixture
def project(tmp_path: Path) -> NewProject:
    return make_project(tmp_path / "water-level", in_sql=True)


def readme_lines(project: NewProject, begin: str) -> list[str]:
    lines = (project.folder / "README.md").read_text().splitlines()
    return [line for line in lines if line.startswith(begin)]


def harness(project: NewProject) -> JobHarness:
    return JobHarness(load_job(str(project.folder / "water_level.sql")).job, strict=True)


def sample(project: NewProject) -> list[dict[str, Any]]:
    lines = (project.folder / "sample" / "readings" / "1.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_project_has_the_files_of_the_template_under_its_own_name(project: NewProject) -> None:
    there = {str(p.relative_to(project.folder)) for p in project.folder.rglob("*") if p.is_file()}
    assert there == set(project.files) == FILES
    for path in there:
        assert not re.search("project.name|0[.]0[.]0", (project.folder / path).read_text()), path


def test_the_command_makes_it(tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["init", str(tmp_path / "rooms"), "--sql"])
    assert result.exit_code == 0
    assert "8 files" in result.stderr
    assert (tmp_path / "rooms" / "rooms.sql").is_file()


def test_the_sample_gives_what_the_readme_shows(project: NewProject) -> None:
    run = harness(project)
    run.send("readings", *sample(project))
    run.finish()
    shown = [json.loads(line) for line in readme_lines(project, "{")]
    assert len(shown) == 2
    found = [json.loads(msgspec.json.encode(one)) for one in run.output("alerts")]
    assert sorted(found, key=lambda one: str(one["sensor"])) == shown


def test_the_commands_of_the_readme_steer_the_job(project: NewProject) -> None:
    """Their parameter exists, and changes the output for readings."""
    lines = readme_lines(project, "penstock control send")
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        options = dict(zip(words[4::2], words[5::2], strict=False))
        run = harness(project)
        run.send_command(options["--kind"], options["--target"], json.loads(options["--json"]))
        run.send("readings", *sample(project))
        run.finish()
        assert len(run.output("alerts")) == 3


def test_the_commands_of_the_readme_are_those_of_penstock(project: NewProject) -> None:
    """Each has valid options, and binds all streams of the job."""
    lines = [shlex.split(line)[1:] for line in readme_lines(project, "penstock ")]
    of_a_checkpoint = ["sql", "sql", "sql", "control", "state", "stop"]
    assert [words[0] for words in lines] == [*of_a_checkpoint, "serve", "submit", "list", "control", "stop"]
    for words in lines:
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        context = command.make_context("penstock", words)
        if command.name == "sql" and context.params["define"]:
            bound = [uri.partition("=")[0] for uri in context.params["define"]]
            assert bound == ["readings", "alerts"]


def test_a_server_can_run_the_project(project: NewProject) -> None:
    """The definition binds what the README binds."""
    definitions, problems = Catalog([project.folder]).definitions()
    assert problems == []
    (definition,) = definitions.values()
    assert (definition.id, definition.name) == ("water_level", "water-level")
    (line,) = [line for line in readme_lines(project, "penstock sql") if "--checkpoint" in line]
    bindings = dict(word.split("=", 1) for word in shlex.split(line) if "=jsonl:" in word)
    assert definition.settings["bindings"] == bindings
    (started,) = readme_lines(project, "penstock submit")
    assert started.split()[-1] == definition.id
