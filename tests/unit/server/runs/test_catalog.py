"""The catalog: what defines a job, by which id, and what does not get in."""

from __future__ import annotations

import doctest
from pathlib import Path

import pydantic
import pytest

from penstock.errors import BindingError, JobDefinitionError, UnknownIdError
from penstock.server.runs import driver
from penstock.server.runs.definitions import Catalog, Changes, JobSettings, apply_changes
from penstock.server.runs.driver import expand_variables


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "job.py").write_text("raise SystemExit('the server runs no code of a job')\n")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_define_jobs(root: Path) -> None:
    """By their paths; others beside them are nobody's business."""
    write(
        root / "tally.yaml", "job: job.py:tally\nname: Tally!\nbindings: {hits: 'jsonl:in'}\nparallelism: 2"
    )
    write(root / "team-a" / "rules.yml", "entry_point: rules")
    write(root / "team-a" / "job.py", "")
    write(root / "team-a" / "other.yaml", "job: ./job.py\nrestart: {strategy: fixed-delay, attempts: 3}")
    write(root / "compose.yaml", "services: {}")
    write(root / "list.yaml", "- job: x")
    found, problems = Catalog([root]).definitions()
    assert problems == []
    assert list(found) == ["tally", "team-a.other", "team-a.rules"]
    tally = found["tally"]
    assert (tally.name, tally.file, tally.folder) == ("Tally!", f"{root}/job.py:tally", str(root))
    assert (tally.settings["bindings"], tally.settings["parallelism"]) == ({"hits": "jsonl:in"}, 2)
    assert (found["team-a.rules"].entry_point, found["team-a.rules"].file) == ("rules", None)
    assert found["team-a.other"].settings["restart"] == "fixed-delay:attempts=3"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("job: [", "bad.yaml cannot be read"),
        ("job: missing.py", "names the job file missing.py, which does not exist"),
        ("job: ../outside.py", "outside.py is outside the folder"),
        ("job: /etc/passwd", "passwd is outside the folder"),
        ("job: link.py", "link.py is outside the folder"),
        ("job: job.py\nentry_point: x", "either job or entry_point"),
        ("job: job.py\nparalellism: 2", "paralellism is not a field; perhaps you mean parallelism"),
        ("job: job.py\nparallelism: 0", "parallelism is 0; it must be from 1"),
        ("job: job.py\nparallelism: '2'", "parallelism: Input should be a valid integer"),
        ("job: job.py\nrestart: sometimes", "restart strategy 'sometimes' is not known"),
        ("job: job.py\nbatch_interval: 5", "batch_interval: Input should be a valid string"),
        ("job: job.py\nbatch_interval: soon", "batch_interval is 'soon'"),
        ("job: job.py\nmaster: here", "'here' is not a Spark master"),
        ("job: !!python/object/apply:os.getpid []", "bad.yaml cannot be read"),
    ],
)
def test_wrong_definitions_are_told(root: Path, text: str, problem: str) -> None:
    """And do not stand in the way of others."""
    write(root.parent / "outside.py", "")
    (root / "link.py").symlink_to(root.parent / "outside.py")
    write(root / "bad.yaml", text)
    write(root / "good.yaml", "job: job.py")
    catalog = Catalog([root])
    found, problems = catalog.definitions()
    assert list(found) == ["good"]
    assert [problem in told.problem for told in problems] == [True], problems
    with pytest.raises(UnknownIdError, match="There is no definition 'bad'") as error:
        catalog.definition("bad")
    assert problem in str(error.value)


def test_files_that_lead_out_define_nothing(root: Path) -> None:
    """Links to definitions elsewhere."""
    write(root.parent / "secret.yaml", "job: job.py")
    (root / "linked.yaml").symlink_to(root.parent / "secret.yaml")
    found, problems = Catalog([root]).definitions()
    assert found == {}
    assert "is outside the folder" in problems[0].problem


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../good", "/good", "good.yaml", "good\0", "GOOD", "%2e%2e/good", "x" * 5000]
)
def test_ids_are_looked_up_and_not_opened(root: Path, name: str) -> None:
    """What is no id of a definition is unknown, whatever it looks like."""
    write(root / "good.yaml", "job: job.py")
    with pytest.raises(UnknownIdError, match="Available definitions: good"):
        Catalog([root]).definition(name)


def test_an_id_that_two_files_have_is_nobodys(root: Path, tmp_path: Path) -> None:
    """Which one is meant cannot be known."""
    write(root / "a" / "b.yaml", "entry_point: x")
    write(tmp_path / "more" / "a" / "b.yml", "entry_point: y")
    found, problems = Catalog([root, tmp_path / "more"]).definitions()
    assert found == {}
    assert "the same id 'a.b'" in problems[0].problem


def test_a_mounted_config_map_defines_each_job_once(root: Path) -> None:
    """Kubernetes mounts a file as a link to a link to a hidden folder, which is no folder of definitions."""
    hidden = root / "maps" / "..2026_11_22_00_00_00.1"
    hidden.mkdir(parents=True)
    write(hidden / "mapped.yaml", "entry_point: x")
    (root / "maps" / "..data").symlink_to(hidden.name)
    (root / "maps" / "mapped.yaml").symlink_to("..data/mapped.yaml")
    found, problems = Catalog([root / "maps"]).definitions()
    assert list(found) == ["mapped"]
    assert problems == []


def test_names_that_are_no_ids_are_told(root: Path) -> None:
    """So that an id needs no escape anywhere."""
    write(root / "my job.yaml", "job: job.py")
    assert "is not a valid id" in Catalog([root]).definitions()[1][0].problem


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(JobDefinitionError, match=r"The folder .*nowhere .* does not exist"):
        Catalog([tmp_path / "nowhere"])


def test_problems_do_not_tell_secrets(root: Path) -> None:
    """The error says what is wrong, without the value."""
    write(root / "bad.yaml", "job: job.py\nbindings: {hits: {password: s3cret}}")
    problem = Catalog([root]).definitions()[1][0].problem
    assert "bindings.hits" in problem
    assert "s3cret" not in problem


def test_clients_change_numbers_and_no_places() -> None:
    """What they may not set is refused by name; what does not go together as in a definition."""
    settings = JobSettings(bindings={"hits": "jsonl:in"}).model_dump()
    after = apply_changes(settings, Changes(parallelism=3, batch_interval="1s", restart="none"))
    assert (after.parallelism, after.batch_interval, after.restart) == (3, "1s", "none")
    assert after.bindings == {"hits": "jsonl:in"}
    with pytest.raises(pydantic.ValidationError, match="parallelism"):
        Changes(parallelism=0)
    with pytest.raises(JobDefinitionError, match="batch_interval"):
        apply_changes(settings, Changes(batch_interval="soon"))
    assert set(Changes.model_fields).isdisjoint(
        {"bindings", "master", "spark", "from_dump", "from_savepoint", "job", "entry_point"}
    )


def test_settings_become_those_of_a_run() -> None:
    """With units."""
    found = JobSettings(batch_interval="1.5s", lock_timeout="2m", spark={"a": "b"}).run_settings("/c")
    assert (found["batch_interval_ms"], found["lock_timeout_s"]) == (1500, 120.0)
    assert (found["spark_settings"], found["checkpoint"]) == ({"a": "b"}, "/c")


def test_variables_are_replaced_in_the_driver() -> None:
    """One that is not set is named; no value is shown."""
    assert doctest.testmod(driver).failed == 0
    bindings = {"a": "kafka://${HOST}:${PORT}/t?sasl.password=${P}", "b": "jsonl:$HOST/{x}"}
    environment = {"HOST": "h", "PORT": "1", "P": "${HOST}"}
    assert expand_variables(bindings, environment) == {
        "a": "kafka://h:1/t?sasl.password=${HOST}",
        "b": "jsonl:$HOST/{x}",
    }
    with pytest.raises(BindingError, match="the variable PORT is not set"):
        expand_variables(bindings, {"HOST": "s3cret"})
