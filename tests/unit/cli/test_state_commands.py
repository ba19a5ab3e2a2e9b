"""The `penstock state` commands with stored states in place of Spark's: their output and exit codes."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree as ET

import pytest
from click.testing import Result
from loaded_modules import loaded_by
from rooms_job import Rooms, committed_rooms, snapshot, stored_rooms
from spark_partitions import commit_versions, describe_operator
from stored_jobs import JobWith, StepWith, StoredJob, captured
from typed_commands import refused, typed

import penstock as ps
from penstock.savepoints.savepoints import list_savepoints
from penstock.snapshots.snapshot_reader import read_manifest
from penstock.snapshots.stores import open_store
from penstock.spark import reading_session

NODE = "step/step 0"
JOB = """
from dataclasses import dataclass

import penstock as ps


@dataclass
class Reading:
    key_0: int


class Limits(ps.ProcessFunction):
    {states}

    def process_record(self, record, ctx):
        yield record


job = ps.Job("drawn", key_groups={key_groups})
readings = job.data_stream("readings-0", schema=Reading)
readings.key_by("key_0").process("{step}", Limits(), output=Reading)
"""


def penstock(*arguments: object) -> Result:
    return typed(*arguments, COLUMNS="200")


def job_file(
    folder: Path,
    states: str = "limit = ps.ValueState(int); factor = ps.Setting(float)",
    step: str = "step 0",
    key_groups: int = 4,
) -> Path:
    number = len(list(folder.glob("job_*.py")))
    path = folder / f"job_{folder.name.replace('-', '_')}_{number}.py"
    path.write_text(JOB.format(states=states, step=step, key_groups=key_groups))
    return path


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    """Return a checkpoint that can be read without Spark."""

    @contextlib.contextmanager
    def no_session(**more: Any) -> Iterator[None]:  # as a session
        yield None

    monkeypatch.setattr(reading_session, "reading_session", no_session)
    return committed_rooms(tmp_path / "cp", monkeypatch)


def changed(place: Path, form: str = "csv") -> None:
    """Return a snapshot with other limits than the rooms': one added, one removed, one changed."""
    rows = {key: {"limit": key * 2} for key in range(1, 11)} | {5: {"limit": -1}}
    states = {"limit": ps.ValueState(int), "factor": ps.Setting(float)}
    job = StoredJob(JobWith([StepWith(states, (int,), [rows, {}], {"factor": {None: 0.5}})], 4), 1)
    captured(place, job.state, form, job.read)


def test_ls_lists_steps_and_states(rooms: Rooms) -> None:
    """The output is a table or JSON, with the number of keys."""
    text = penstock("state", "ls", rooms.folder)
    assert text.exit_code == 0
    lines = [line.split() for line in text.stdout.splitlines() if "limit" in line or "factor" in line]
    words = [[word for word in line if word not in ("│", "┃")] for line in lines]
    assert words == [["step", "0", "10", "limit", "ValueState", "int64"], ["factor", "Setting", "double"]]
    found = json.loads(penstock("state", "ls", rooms.folder, "-ojson").stdout)
    assert found == [
        {
            "step": "step 0",
            "keys": 10,
            "key": "int64",
            "states": [
                {"name": "limit", "kind": "ValueState", "type": "int64"},
                {"name": "factor", "kind": "Setting", "type": "double"},
            ],
        }
    ]


def started(**more: Any) -> NoReturn:
    """Replace a session."""
    raise AssertionError("Spark is started")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands that need one refuse it before they start Spark."""

    monkeypatch.setattr(reading_session, "reading_session", started)
    for arguments in (
        ["state", "ls", tmp_path],
        ["state", "get", tmp_path, "--step=s", "--key=1"],
        ["state", "dump", tmp_path, f"--to={tmp_path / 'd'}"],
        ["savepoint", tmp_path],
        ["stop", tmp_path],
        ["rescale", tmp_path, "--parallelism=2"],
    ):
        result = penstock(*arguments)
        assert "is not a checkpoint of a job that was started" in result.stderr
        assert (result.exit_code, result.stdout) == (2, ""), arguments
    (tmp_path / "state.json").write_text("{")
    refused(penstock("state", "ls", tmp_path), "Start the job again to rewrite it.")


def test_what_is_not_committed_is_refused(
    rooms: Rooms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before Spark starts, and nothing is created."""
    monkeypatch.setattr(reading_session, "reading_session", started)
    dump = ("state", "dump", rooms.folder, f"--to={tmp_path / 'd'}")
    refused(penstock(*dump, "--batch=7"), "does not keep the state after micro-batch 7; it keeps 0 to 2.")
    for path in (rooms.folder / "commits").iterdir():
        path.unlink()
    for arguments in (dump, ("savepoint", rooms.folder)):
        refused(penstock(*arguments), "has committed no micro-batch yet")
    assert not (tmp_path / "d").exists()
    assert not rooms.folder.with_name("cp.savepoints").exists()


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "arrow"])
def test_equal_snapshots_have_no_difference(tmp_path: Path, form: str) -> None:
    """The formats may differ; the exit code is 0."""
    snapshot(tmp_path / "a", "csv")
    snapshot(tmp_path / "b", form)
    result = penstock("state", "diff", tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, result.stdout) == (0, "Both have the same content.\n")
    found = json.loads(penstock("state", "diff", tmp_path / "a", tmp_path / "b", "-ojson", "--all").stdout)
    assert (found["same"], found["tables_added"], found["tables_removed"]) == (True, [], [])
    assert {"step 0/__header", "step 0/limit"} <= {table["name"] for table in found["tables"]}


def test_differences_are_counted_and_shown(tmp_path: Path) -> None:
    """The exit code is 1; states in only one of the two are named."""
    snapshot(tmp_path / "a", "csv")
    changed(tmp_path / "b", "parquet")
    result = penstock("state", "diff", tmp_path / "a", tmp_path / "b", "--samples=1")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "step 0/limit: 1 added, 1 removed, 1 changed, 8 the same",
        '  {"change":"added","key":{"key":10},"before":null,"after":{"key":10,"value":20}}',
        '  {"change":"removed","key":{"key":0},"before":{"key":0,"value":0},"after":null}',
        '  {"change":"changed","key":{"key":5},"before":{"key":5,"value":10},"after":{"key":5,"value":-1}}',
    ]
    result = penstock("state", "diff", tmp_path / "a", tmp_path / "b", "--samples=0", "--statistics")
    first = [line.split("│") for line in result.stdout.splitlines() if "│ first" in line]
    numbers = [[cell.strip() for cell in line[1:-2]] for line in first]
    assert numbers == [["value", "first", "10", "0", "0", "9", "18", "9", "5.74456"]]
    assert "step 0/limit: how far they moved" in result.stdout
    found = penstock("state", "diff", tmp_path / "a", tmp_path / "b", "-ojson")
    assert (found.exit_code, json.loads(found.stdout)["same"]) == (1, False)
    empty = StoredJob(JobWith([StepWith({"more": ps.ValueState(int)}, (int,), [{}, {}])], 4), 1)
    captured(tmp_path / "c", empty.state, "csv", empty.read)
    other = penstock("state", "diff", tmp_path / "a", tmp_path / "c")
    assert (other.exit_code, other.stdout.splitlines()) == (
        1,
        [
            "step 0/more: only in the second",
            "step 0/limit: only in the first",
            "step 0/shared/factor: only in the first",
        ],
    )
    refused(penstock("state", "diff", tmp_path / "a", tmp_path / "nothing"), "There is no snapshot in")


def test_a_sound_snapshot_is_verified(tmp_path: Path) -> None:
    """The output says so."""
    snapshot(tmp_path / "a", "arrow")
    result = penstock("state", "verify", tmp_path / "a")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{tmp_path / 'a'} is sound: ")
    found = json.loads(penstock("state", "verify", tmp_path / "a", "-ojson").stdout)
    assert (found["sound"], found["defects"]) == (True, [])


def test_an_edited_dump_is_a_defect_until_it_is_accepted(tmp_path: Path) -> None:
    """With acceptance every row is checked; savepoints may never be edited."""
    snapshot(tmp_path / "a", "csv")
    (part, *_) = sorted((tmp_path / "a").glob("**/limit/part-*.csv"))
    original = part.read_text()
    edited = original.splitlines()
    edited[1] = edited[1].rpartition(",")[0] + ",77"
    part.write_text("\n".join(edited) + "\n")
    result = penstock("state", "verify", tmp_path / "a")
    name = str(part.relative_to(tmp_path / "a"))
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{name}: ")
    found = json.loads(penstock("state", "verify", tmp_path / "a", "-ojson").stdout)
    assert (found["sound"], [defect["path"] for defect in found["defects"]]) == (False, [name])
    assert penstock("state", "verify", tmp_path / "a", "--accept").exit_code == 0
    assert penstock("state", "verify", tmp_path / "a").exit_code == 0
    part.write_text("\n".join([*edited[:1], edited[1].rpartition(",")[0] + ",much"]) + "\n")
    refused(penstock("state", "verify", tmp_path / "a", "--accept"), "much")
    snapshot(tmp_path / "sp", "arrow")
    refused(penstock("state", "verify", tmp_path / "sp", "--accept"), "is a savepoint, which is never edited")
    missing = penstock("state", "verify", tmp_path / "nothing")
    assert missing.exit_code == 1
    assert "There is no snapshot in" in missing.stdout


@pytest.mark.parametrize("kind", ["savepoint", "dump", "checkpoint"])
def test_a_plan_says_what_becomes_of_each_state(tmp_path: Path, rooms: Rooms, kind: str) -> None:
    """This works for anything that a job can start from. The exit code is 1 if the start would be refused."""
    source = rooms.folder
    if kind != "checkpoint":
        source = tmp_path / kind
        snapshot(source, "arrow" if kind == "savepoint" else "csv")
    same = penstock("state", "plan", job_file(tmp_path), f"--from={source}", "-ojson")
    assert same.exit_code == 0
    assert json.loads(same.stdout) == [
        {"step": "step 0", "state": name, "found": name, "outcome": "kept", "detail": ""}
        for name in ("limit", "factor")
    ]
    moved = job_file(tmp_path, 'most = ps.ValueState(int, renamed_from="limit"); factor = ps.Setting(str)')
    text = penstock("state", "plan", moved, f"--from={source}")
    assert text.exit_code == 1
    assert "renamed" in text.stdout
    assert "it is declared as string, and found as double: not every value fits" in text.stdout
    found = penstock("state", "plan", moved, f"--from={source}", "-ojson")
    assert (found.exit_code, [c["outcome"] for c in json.loads(found.stdout)]) == (1, ["renamed", "refused"])
    gone = job_file(tmp_path, step="other")
    assert penstock("state", "plan", gone, f"--from={source}").exit_code == 1
    allowed = penstock("state", "plan", gone, f"--from={source}", "--allow-non-restored-state", "-ojson")
    if kind == "checkpoint":
        assert (allowed.exit_code, "take a savepoint" in allowed.stdout) == (1, True)
        return
    assert allowed.exit_code == 0
    assert {c["outcome"] for c in json.loads(allowed.stdout)} == {"added", "dropped"}


def test_a_plan_needs_a_job_and_a_source(tmp_path: Path) -> None:
    """The message says which is missing."""
    snapshot(tmp_path / "sp", "arrow")
    refused(
        penstock("state", "plan", tmp_path / "none.py", f"--from={tmp_path / 'sp'}"), "There is no job file"
    )
    refused(
        penstock("state", "plan", job_file(tmp_path), f"--from={tmp_path / 'none'}"), "There is no snapshot"
    )


def test_savepoints_are_listed_and_deleted(tmp_path: Path) -> None:
    """This works also where the checkpoint is gone; the error for an unknown id lists the known ones."""
    checkpoint = tmp_path / "cp"
    none = penstock("savepoint", checkpoint, "--list", "-ojson")
    assert (none.exit_code, none.stdout) == (0, "[]\n")
    snapshot(tmp_path / "cp.savepoints" / "s-1", "arrow")
    found = json.loads(penstock("savepoint", checkpoint, "--list", "-ojson").stdout)
    place = str(tmp_path / "cp.savepoints" / "s-1")
    assert found == [{"id": "s-1", "job": "drawn", "batch": 7, "created_at": None, "uri": place}]
    text = penstock("savepoint", checkpoint, "--list")
    assert text.exit_code == 0
    assert "s-1" in text.stdout
    refused(penstock("savepoint", checkpoint, "--dispose=s-2"), "it has s-1. Name one of them")
    gone = penstock("savepoint", checkpoint, "--dispose=s-1")
    assert (gone.exit_code, gone.stdout) == (0, "")
    assert gone.stderr.replace("\n", "").startswith(f"Deleted {place}, ")
    assert list(list_savepoints(str(tmp_path / "cp.savepoints"))) == []
    snapshot(tmp_path / "elsewhere" / "s-3", "arrow")
    listed = penstock("savepoint", checkpoint, "--list", f"--to={tmp_path / 'elsewhere'}", "-ojson")
    assert [m["id"] for m in json.loads(listed.stdout)] == ["s-1"]
    assert penstock("savepoint", checkpoint, f"--dispose={tmp_path / 'elsewhere' / 's-3'}").exit_code == 0


def test_a_job_that_does_not_run_cannot_be_stopped(rooms: Rooms) -> None:
    """The message says what to do instead."""
    for more in ([], ["--savepoint"], ["--drain"]):
        refused(
            penstock("stop", rooms.folder, *more),
            f"No job runs on {rooms.folder}. Its state is in the checkpoint; penstock savepoint takes a savepoint of "
            "it.",
        )


def test_a_job_that_does_not_run_is_rescaled_in_its_checkpoint(rooms: Rooms) -> None:
    """The result is reported; an invalid request is refused with the reason."""
    refused(penstock("rescale", rooms.folder, "--parallelism=5"), "it must be from 1 to 4")
    assert penstock("rescale", rooms.folder, "--parallelism=0").exit_code == 2
    rooms.commit(2, planned=3)
    refused(penstock("rescale", rooms.folder, "--parallelism=3"), "was stopped within micro-batch 3")
    (rooms.folder / "offsets" / "3").unlink()
    result = penstock("rescale", rooms.folder, "--parallelism=3", "-ojson")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["before"], found["after"], found["batch"]) == (2, 3, 2)
    text = penstock("rescale", rooms.folder, "--parallelism=1")
    assert text.exit_code == 0
    assert text.stdout.startswith(
        "The parallelism was 3 and is 1 since micro-batch 2; the job stood still for "
    )
    same = penstock("rescale", rooms.folder, "--parallelism=1")
    assert (same.exit_code, same.stdout) == (0, "The parallelism is 1 already; nothing changed.\n")


def test_a_dump_and_a_savepoint_are_told_with_what_they_hold(rooms: Rooms, tmp_path: Path) -> None:
    """The place or the id is on stdout, the rest on stderr; a place cannot be reused."""
    first = penstock("state", "dump", rooms.folder, f"--to={tmp_path / 'd'}", "--format=jsonl")
    assert (first.exit_code, first.stdout) == (0, f"{tmp_path / 'd'}\n")
    assert "step 0/limit: 10 rows" in first.stderr
    refused(
        penstock("state", "dump", rooms.folder, f"--to={tmp_path / 'd'}"),
        f"There is a snapshot in {tmp_path / 'd'} already. Choose another place.",
    )
    refused(
        penstock("state", "dump", rooms.folder, f"--to={tmp_path / 'e'}", "--batch=9"),
        f"The checkpoint {rooms.folder} does not keep the state after micro-batch 9; it keeps 0 to 2.",
    )
    second = penstock("savepoint", rooms.folder, "-ojson")
    found = json.loads(second.stdout)
    assert (found["kind"], found["batch"], found["tables"]) == (
        "savepoint",
        2,
        {"step 0/shared/factor": 1, "step 0/limit": 10},
    )
    manifest = read_manifest(open_store(found["uri"]))
    assert (manifest.id, manifest.digest) == (found["id"], found["digest"])
    assert manifest.positions == {"readings-0": {"position": 3}}
    assert (manifest.created_at or "").endswith("+00:00")
    assert penstock("state", "diff", tmp_path / "d", found["uri"]).exit_code == 0


def test_the_state_of_one_key_is_shown(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1 if there is none, 2 for an invalid key. Spark is not needed."""
    monkeypatch.setattr(reading_session, "reading_session", started)
    text = penstock("state", "get", rooms.folder, "--step=step 0", "--key=3")
    assert (text.exit_code, text.stdout) == (0, "limit: 6\n")
    found = penstock("state", "get", rooms.folder, "--step=step 0", "--key=3", "-ojson")
    assert json.loads(found.stdout) == {"limit": 6}
    none = penstock("state", "get", rooms.folder, "--step=step 0", "--key=99", "-ojson")
    assert (none.exit_code, none.stdout) == (1, "null\n")
    refused(
        penstock("state", "get", rooms.folder, "--step=no", "--key=1"),
        "has no step 'no'; its steps are step 0",
    )
    refused(
        penstock("state", "get", rooms.folder, "--step=step 0", "--key=attic"),
        "'attic' is not a key of the step, whose keys are int64",
    )


def test_commands_that_need_no_spark_do_not_load_it(rooms: Rooms, tmp_path: Path) -> None:
    """Importing it would take a second."""
    describe_operator(rooms.folder, NODE)
    shutil.rmtree(rooms.folder / "commits")
    commit_versions(rooms.folder, NODE, [[rooms.stored.stored[NODE, number]] for number in range(2)], 1)
    snapshot(tmp_path / "empty.savepoints" / "a", "arrow")
    snapshot(tmp_path / "b", "csv")
    (tmp_path / "empty").mkdir()
    a, b, cp = (tmp_path / name for name in ("empty.savepoints/a", "b", "empty"))
    codes, modules = loaded_by(
        ["state", "diff", a, b],
        ["state", "verify", a],
        ["savepoint", cp, "--list"],
        ["stop", cp],
        ["savepoint", cp, "--dispose=a"],
        ["state", "get", rooms.folder, "--step=step 0", "--key=3"],
        ["state", "get", rooms.folder, "--step=step 0", "--key=99"],
    )
    assert codes == [0, 0, 0, 2, 0, 0, 1]
    assert "pyspark" not in modules


def test_what_the_rooms_hold_is_what_the_other_tests_say() -> None:
    """There are ten keys, in two slots."""
    stored = stored_rooms()
    assert len(stored.expected["step 0/limit"][1]) == 10


def test_distributions_are_drawn(tmp_path: Path) -> None:
    """The picture is well-formed, with a panel for each numeric column; JSON is available too."""
    snapshot(tmp_path / "a", "csv")
    changed(tmp_path / "b", "parquet")
    picture = tmp_path / "moved.svg"
    found = penstock(
        "state", "diff", tmp_path / "a", tmp_path / "b", "--statistics", f"--picture={picture}", "-ojson"
    )
    (table,) = [one for one in json.loads(found.stdout)["statistics"] if one["name"] == "step 0/limit"]
    (column,) = table["compared"]
    assert 0 < column["kolmogorov_smirnov"] < 1
    panels = ET.fromstring(picture.read_text()).findall(".//{*}g")
    assert any("step 0/limit: value" in (panel.findtext("{*}title") or "") for panel in panels)
    assert all(len(panel.findall("{*}path")) == 2 for panel in panels)


def test_a_query_reads_a_job_or_a_dump(rooms: Rooms, tmp_path: Path) -> None:
    """It reads a job's state after its newest micro-batch, or a snapshot by path; errors are sentences."""
    query = 'select count(*) as rooms, min("limit") is null as none from state."step 0"'
    found = penstock("query", rooms.folder, query, "-ojson")
    assert found.exit_code == 0, found.stderr
    answer = json.loads(found.stdout)
    assert (answer["batch"], answer["rows"]) == (2, [{"rooms": 10, "none": False}])
    assert answer["columns"] == [{"name": "rooms", "type": "int64"}, {"name": "none", "type": "bool"}]
    penstock("state", "dump", rooms.folder, f"--to={tmp_path / 'd'}", "--format=parquet")
    same = json.loads(penstock("query", tmp_path / "d", query, "-ojson").stdout)
    assert same["rows"] == answer["rows"]
    shown = penstock("query", tmp_path / "d", query)
    assert "rooms" in shown.stdout
    assert "10" in shown.stdout
    assert "1 row after micro-batch" in shown.stderr
    wrong = penstock("query", rooms.folder, 'select nothing from state."step 0"')
    assert wrong.exit_code == 2
    assert "(at line 1, column 8)" in wrong.stderr
    limited = penstock("query", tmp_path / "d", 'select * from state."step 0"', "--rows=3")
    assert (limited.exit_code, limited.stdout) == (2, "")
    assert "more than 3 rows" in limited.stderr
