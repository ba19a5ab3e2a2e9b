"""The doctor as a whole: all checks run, a crash in one does not stop others, and the command line prints them."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from penstock.cli import app
from penstock.doctor import examination, findings, machine
from penstock.doctor.examination import Wanted, examine
from penstock.doctor.findings import Finding, failed, fine, refused, warning, worst
from penstock.machine.local_server import free_port
from penstock.objects.object_stores import S3_ENDPOINTS

EXAMPLE = Path(__file__).parents[3] / "examples" / "dynamic_rules" / "rules_job.py"
ALWAYS = [
    "python",
    "packages",
    "workers",
    "spark",
    "java",
    "jars",
    "classes",
    "cache",
    "temporary files",
    "cores",
    "memory",
    "open files",
    "loopback",
    "server port",
    "host name",
    "clock",
]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset settings of this machine that would add folders."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    for variable in ("SPARK_LOCAL_DIRS", *S3_ENDPOINTS):
        monkeypatch.delenv(variable, raising=False)


def doctor(*arguments: object) -> Result:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["doctor", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def found(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    """Provide the results of the checks."""
    monkeypatch.setattr(examination, "examine", lambda wanted: iter(findings))


def test_every_check_of_the_machine_is_made() -> None:
    """Each runs once, under its own name."""
    assert [findings.check for findings in examine(Wanted())] == ALWAYS


def test_checkpoint_job_and_ports_are_looked_at_when_they_are_named(tmp_path: Path) -> None:
    """They follow the machine's checks; an invalid job does not hide its checkpoint."""
    (tmp_path / "in").mkdir()
    port = free_port()
    wanted = Wanted(tmp_path / "state", str(EXAMPLE), {"payments": f"jsonl:{tmp_path}/in"}, (port,))
    more = [findings for findings in examine(wanted) if findings.check not in ALWAYS]
    assert [(f.check, f.status) for f in more] == [
        (f"port {port}", "ok"),
        ("checkpoint folder", "ok"),
        ("checkpoint", "ok"),
        ("job", "ok"),
        ("bindings", "failed"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_an_object_store_is_looked_at_when_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the clock, since both must have the same time."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    findings = list(examine(Wanted()))
    assert [findings.check for findings in findings] == [*ALWAYS, "object store"]
    assert findings[-1].status == "warning"


def test_a_check_that_breaks_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as a failed check."""

    def broken() -> Finding:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(machine, "check_memory", broken)
    findings = {findings.check: findings for findings in examine(Wanted())}
    assert list(findings) == ALWAYS
    assert findings["memory"].status == "failed"
    assert findings["memory"].found == "the check failed (ZeroDivisionError: oh)"


def test_the_worst_finding_counts() -> None:
    """No finding means ok."""
    good, soso, bad = fine("a", "x"), warning("b", "y", "z"), failed("c", "y", "z")
    assert [worst(some) for some in ([], [good], [good, soso], [bad, good, soso])] == [
        "ok",
        "ok",
        "warning",
        "failed",
    ]


@pytest.mark.parametrize(
    ("message", "happened", "remedy"),
    [
        ("A.b is 1.5 old. Renew it. Or not.", "A.b is 1.5 old.", "Renew it. Or not."),
        ("x has no place. Allowed:\n  a\n  b", "x has no place.", "Allowed:\n  a\n  b"),
        ("No remedy", "No remedy", "See the message."),
    ],
)
def test_a_message_is_what_happened_and_what_to_do(message: str, happened: str, remedy: str) -> None:
    """The error's single text contains both."""
    told = refused("check", ValueError(message))
    assert (told.status, told.found, told.remedy) == ("failed", happened, remedy)


def test_the_example_of_a_finding_runs() -> None:
    """The docstring's example runs unchanged."""
    assert doctest.testmod(findings).failed == 0


def test_people_get_a_table_with_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup in findings is shown as text."""
    found(monkeypatch, fine("python", "[bold]3.12"), warning("memory", "little", "Buy [some]."))
    result = doctor()
    assert result.exit_code == 0
    for said in ("[bold]3.12", "memory", "warning", "little", "Buy [some].", "1 ok, 1 warning"):
        assert said in result.stdout


def test_machines_get_one_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the worst status, which is also the exit code."""
    found(monkeypatch, fine("python", "3.12"), failed("java", "none", "Install one."))
    result = doctor("-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "status": "failed",
        "checks": [
            {"check": "python", "status": "ok", "found": "3.12", "remedy": ""},
            {"check": "java", "status": "failed", "found": "none", "remedy": "Install one."},
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-D", "readings=jsonl:/tmp"], "Name the job file too"),
        ([EXAMPLE, "-D", "readings"], "NAME=URI"),
        (["--port", "0"], "'--port'"),
    ],
)
def test_wrong_use_is_refused(arguments: list[object], said: str) -> None:
    """The refusal comes before any check."""
    result = doctor(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
