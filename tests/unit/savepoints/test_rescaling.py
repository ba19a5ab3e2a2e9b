"""Rescaling: the same state for another number of tasks, atomically, wherever it is killed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crashes import Crash, crashes, until_done
from domains import CountRecords, Reading
from rooms_job import GROUPS, KEYS, POSITIONS, committed_rooms, copied_rooms, rooms, snapshot
from stored_jobs import captured, read_from

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.checkpoint_files import check_checkpoint
from penstock.checkpoints.evolution import plan_changes
from penstock.errors import CheckpointError
from penstock.jobs.restore import begin, declared_state
from penstock.jobs.settings import RunSettings
from penstock.runtime.seed import FolderSeed
from penstock.runtime.slots import first_key_groups, slots
from penstock.savepoints import snapshot_capture
from penstock.savepoints.rescaling import check_mode_change, finish_rescaling, rescale
from penstock.savepoints.snapshot_capture import Capture, capture
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.state.slot_tables import SlotTables
from penstock.testing import JobHarness
from penstock.testing.batch_runner import BatchRunner
from penstock.testing.memory_entries import MemoryEntries

NO_SESSION: Any = None
SPARK = {"offsets", "commits", "state", "metadata"}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no power failure is simulated here, and there are many files."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # as os.fsync


def digest(checkpoint: Checkpoint, place: Path) -> str:
    """Return a digest of the checkpoint's content."""
    shutil.rmtree(place, ignore_errors=True)
    return capture(NO_SESSION, checkpoint, Capture("dump", str(place), "csv")).digest


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".tmp")}


def check_rescaled(checkpoint: Checkpoint, place: Path, expected: str) -> None:
    """Check that the state is the same, Spark starts anew, and the numbering of micro-batches continues."""
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    assert (lineage.parallelism, lineage.first_batch, lineage.id) == (3, 3, "abc")
    assert (lineage.origin.kind, lineage.origin.batch) == ("rescale", 2)
    assert lineage.origin.reason == "from 2 to 3 tasks"
    assert lineage.positions == {"readings-0": {"position": 3}}
    assert names(checkpoint.folder) == {"lineage.json", "state.json", "counts.json", "seed"}
    counts = json.loads((checkpoint.folder / "counts.json").read_bytes())
    assert counts == {"batch": 2, "keys": {}, "held": {}, "state_bytes": {}, "records": 9}
    assert digest(checkpoint, place) == expected
    check_checkpoint(checkpoint, 100)


def test_the_state_is_given_to_another_number_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is also moved back, from seeds that no slot has restored yet."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    before = digest(checkpoint, tmp_path / "before")
    assert rescale(NO_SESSION, checkpoint, 3) == checkpoint.stored_lineage()
    check_rescaled(checkpoint, tmp_path / "after", before)
    again = rescale(NO_SESSION, checkpoint, 1)
    assert (again.parallelism, again.first_batch, again.origin.batch) == (1, 3, 2)
    assert again.positions == {"readings-0": {"position": 3}}
    assert digest(checkpoint, tmp_path / "again") == before


def test_a_killed_rescaling_is_not_begun_or_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes at every second change of the file system; the completion may be killed as well."""
    original = committed_rooms(tmp_path / "original", monkeypatch)
    expected = digest(original.checkpoint, tmp_path / "expected")
    outcomes = []
    for number in itertools.count(0, 2):
        folder = tmp_path / f"cp-{number}"
        checkpoint = copied_rooms(original, folder, monkeypatch).checkpoint
        try:
            with crashes(number):
                rescale(NO_SESSION, checkpoint, 3)
        except Crash:
            pass
        else:
            break
        until_done(lambda found=checkpoint: finish_rescaling(found))  # type: ignore[misc]
        lineage = checkpoint.stored_lineage()
        assert lineage is not None
        assert not (folder / "rescaling.json").exists()
        outcomes.append(lineage.parallelism)
        if lineage.parallelism == 2:
            assert names(folder) >= SPARK
            # Its remains do not disturb the next one, which finds the old state.
            if number % 10 == 0:
                rescale(NO_SESSION, checkpoint, 3)
                check_rescaled(checkpoint, tmp_path / "found", expected)
        else:
            check_rescaled(checkpoint, tmp_path / "found", expected)
        shutil.rmtree(folder)
    # Before one moment nothing has changed, after it the rescaling is done.
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {2, 3}


def test_a_micro_batch_that_was_not_finished_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan is for the old tasks."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    rooms.commit(2, planned=3)
    before = names(rooms.folder)
    with pytest.raises(CheckpointError) as caught:
        rescale(NO_SESSION, rooms.checkpoint, 3)
    assert str(caught.value) == (
        f"The job in {rooms.folder} was stopped within micro-batch 3. Start it once with penstock run to finish that, "
        "stop it, and rescale then."
    )
    assert names(rooms.folder) == before


def test_a_mode_does_not_change_within_a_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the first one, when there is no state yet."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    check_mode_change(rooms.checkpoint)
    rooms.commit(2, planned=3)
    with pytest.raises(
        CheckpointError, match=r"stopped within micro-batch 3. .* in the mode in which it ran"
    ):
        check_mode_change(rooms.checkpoint)
    for commit in (rooms.checkpoint.spark_folder / "commits").iterdir():
        commit.unlink()
    with pytest.raises(CheckpointError, match="stopped within micro-batch"):
        check_mode_change(rooms.checkpoint)


@pytest.mark.parametrize("parallelism", [-1, 0, GROUPS + 1])
def test_there_are_no_more_tasks_than_key_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    """There is at least one task."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    with pytest.raises(CheckpointError) as caught:
        rescale(NO_SESSION, checkpoint, parallelism)
    assert str(caught.value) == (
        f"The parallelism is {parallelism}; it must be from 1 to 4, the number of key groups."
    )


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """The error names the folder."""
    with pytest.raises(CheckpointError, match="is not a checkpoint of a job"):
        rescale(NO_SESSION, Checkpoint(tmp_path), 3)


def test_without_any_state_only_the_number_changes(tmp_path: Path) -> None:
    """A job without any commit has nothing to capture."""
    checkpoint = Checkpoint.open(str(tmp_path / "cp"))
    from penstock.jobs.compile import wanted_lineage

    lineage = checkpoint.lineage(wanted_lineage(rooms(), RunSettings(parallelism=2)))
    after = rescale(NO_SESSION, checkpoint, 4)
    assert after == msgspec.structs.replace(lineage, parallelism=4) == checkpoint.stored_lineage()
    assert names(checkpoint.folder) == {"lineage.json"}


def test_what_began_from_a_savepoint_and_has_not_run_keeps_its_positions(tmp_path: Path) -> None:
    """Spark has noted no positions yet."""
    snapshot(tmp_path / "sp", "arrow")
    checkpoint = Checkpoint.open(str(tmp_path / "cp"))
    settings = RunSettings(parallelism=2, from_savepoint=str(tmp_path / "sp"))
    begin(rooms(), settings, checkpoint)
    checkpoint.save("state.json", declared_state(rooms()))
    before = digest(checkpoint, tmp_path / "before")
    lineage = rescale(NO_SESSION, checkpoint, 4)
    assert (lineage.positions, lineage.first_batch) == (POSITIONS, 0)
    assert digest(checkpoint, tmp_path / "after") == before


def test_a_stream_that_was_not_read_keeps_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's log has no entry for it."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    began = {"commands": {"position": 8}, "readings-0": {"position": 1}}
    checkpoint.begin(msgspec.structs.replace(lineage, positions=began))
    found = rescale(NO_SESSION, checkpoint, 3).positions
    assert found == {"commands": {"position": 8}, "readings-0": {"position": 3}}


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 6])
def test_slots_that_have_run_are_read_from_spark_and_the_others_from_their_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    """Each is read once, whatever ran first; also with more tasks than key groups, some of which then have
    none.
    """
    snapshot(tmp_path / "sp", "arrow")
    job = rooms()
    state = declared_state(job)
    for ran in range(parallelism + 1):
        checkpoint = Checkpoint.open(str(tmp_path / f"cp-{ran}"))
        settings = RunSettings(parallelism=parallelism, from_savepoint=str(tmp_path / "sp"))
        begin(job, settings, checkpoint)
        checkpoint.save("state.json", state)
        firsts = first_key_groups(GROUPS, parallelism)
        taken = {number for number in firsts if number < ran}
        seed = checkpoint.seed

        def read_slots(*arguments: Any, slots: Any = taken, at: Path = seed, by: Any = firsts) -> Any:
            _, _, _, node, reader = arguments
            found = []
            for number in slots:
                place = at / node.replace("/", "%2F").replace(" ", "%20") / f"{by[number]:05d}"
                entries = {path.name.replace("~", "/"): path.read_bytes() for path in place.iterdir()}
                found += reader(number, entries)
            return set(slots), found

        monkeypatch.setattr(snapshot_capture, "read_slots", read_slots)
        (checkpoint.folder / "commits").mkdir()
        (checkpoint.folder / "commits" / "0").touch()
        (checkpoint.folder / "offsets").mkdir()
        (checkpoint.folder / "offsets" / "0").write_text("v1\n{}\n-\n-")
        manifest = capture(NO_SESSION, checkpoint, Capture("dump", str(tmp_path / f"d-{ran}"), "csv"))
        assert manifest.table("step 0/limit").rows == len(KEYS)
        assert manifest.digest == captured(tmp_path / f"e-{ran}", state, "csv", of(seed, parallelism)).digest


def of(seed: Path, parallelism: int) -> Any:
    return read_from(seed, declared_state(rooms()), parallelism)


def test_every_slot_has_the_number_of_its_partition() -> None:
    """Spark's state and seeds both identify slots by it."""
    for key_groups, parallelism in itertools.product(range(1, 9), range(1, 12)):
        found = first_key_groups(key_groups, parallelism)
        assert list(found.values()) == [s.key_groups[0] for s in slots(key_groups, parallelism).values()]
        assert all(0 <= number < parallelism for number in found)


def counting() -> ps.Job:
    job = ps.Job("counting", key_groups=GROUPS)
    job.data_stream("readings", schema=Reading).key_by("room").process("count", CountRecords()).sink_to("out")
    return job


def test_a_worker_that_kept_older_tables_of_a_slot_takes_over_its_seed(tmp_path: Path) -> None:
    """A job that is rescaled and then rescaled back has slots that its workers have cached."""
    job = counting()
    readings = [Reading(number) for number in range(8)]
    before = BatchRunner(job, parallelism=2)
    before.run({"readings": [("0", readings)]})
    before.run({"readings": [("0", readings)]})
    state = declared_state(job)
    stored = {number: entries for number, (_, entries) in enumerate(before.states.items())}

    def read(node: str, reader: Any) -> list[bytes]:  # as a step's reader
        return [body for number, entries in stored.items() for body in reader(number, dict(entries))]

    captured(tmp_path / "sp", state, "arrow", read)
    changes = plan_changes(state.steps, state.steps)
    write_seed(Snapshot.at(str(tmp_path / "sp")), state, 2, changes, tmp_path / "seed")
    after = BatchRunner(job, parallelism=2)
    after.plan = dataclasses.replace(after.plan, seed=FolderSeed(tmp_path / "seed"))
    found = after.run({"readings": [("0", readings)]}).output("out")
    assert sorted((one.key, one.count) for one in found) == [(number, 3) for number in range(8)]


def test_all_slots_of_a_seed_together_hold_what_the_snapshot_does(tmp_path: Path) -> None:
    """Each key is only in the slot of its key group."""
    snapshot(tmp_path / "sp", "arrow")
    state = declared_state(rooms())
    changes = plan_changes(state.steps, state.steps)
    write_seed(Snapshot.at(str(tmp_path / "sp")), state, 3, changes, tmp_path / "seed")
    schema = state.steps["step 0"].schema
    found: dict[int, int] = {}

    def keys_of(number: int, entries: Mapping[str, bytes]) -> list[bytes]:
        tables = SlotTables(schema, MemoryEntries(dict(entries)))
        own = list(slots(GROUPS, 3).values())[number].own
        assert set(tables.tables) <= own
        for table in tables.tables.values():
            for row in table.all_rows().to_pylist():
                assert row["key"] not in found
                found[row["key"]] = row["limit"]
        return []

    read_from(tmp_path / "seed", state, 3)(state.steps["step 0"].node, keys_of)
    assert found == {key: key * 2 for key in KEYS}


def test_a_parameter_of_windows_that_a_command_has_set_stays() -> None:
    """It is stored as a setting of the step, also after a savepoint."""
    job = ps.Job("sums", key_groups=8)
    visits = job.data_stream(
        "visits",
        schema="user STRING, at BIGINT, number INT",
        event_time="at",
        watermarks=ps.Watermarks.bounded("1s"),
    )
    visits.key_by("user").window(ps.TumblingWindows("10s")).sum("sums", "number").sink_to("out")
    run = JobHarness(job, parallelism=2)
    run.send_command("set", "sums", {"aggregate": "max"})
    run.run_batch()
    run.rescale(1)
    run.send("visits", *({"user": "ann", "at": 1000 * number, "number": number} for number in range(20)))
    run.run_batch()
    run.finish()
    assert [one.value for one in run.output("out")] == [9.0, 19.0]
