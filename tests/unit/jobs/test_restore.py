"""Restoring: the state a job starts with, what it reports, and that a killed start leaves nothing half done."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crashes import Crash, crashes
from rooms_job import GROUPS, POSITIONS, committed_rooms, rooms, snapshot, steps
from stored_jobs import StepWith, captured, job_of, read_from

import penstock as ps
from penstock.checkpoints.checkpoint import Checkpoint, Lineage, Origin
from penstock.checkpoints.described_state import STATE_FILE
from penstock.checkpoints.evolution import Change
from penstock.errors import (
    CheckpointError,
    DamagedSnapshotError,
    NotThereError,
    SnapshotError,
    StateMismatchError,
)
from penstock.jobs.restore import begin, declared_state, planned_changes, put_aside
from penstock.jobs.settings import RunSettings
from penstock.snapshots.manifest import MANIFEST
from penstock.snapshots.snapshot_reader import accept, read_manifest, verify
from penstock.snapshots.stores import open_store


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no power failure is simulated here, and there are many files."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # as os.fsync


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a savepoint of the rooms job."""
    place = tmp_path_factory.mktemp("savepoints") / "sp-1"
    snapshot(place, "arrow")
    return place


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dump of the rooms job."""
    place = tmp_path_factory.mktemp("dumps") / "d-1"
    snapshot(place, "csv")
    return place


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a new checkpoint."""
    return Checkpoint.open(str(tmp_path / "cp"))


def settings(**more: Any) -> RunSettings:
    return RunSettings(parallelism=3, **more)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def digest(checkpoint: Checkpoint, place: Path, job: ps.Job | None = None) -> str:
    """Return a digest of the state with which a job begins."""
    state = declared_state(job or rooms())
    return captured(place, state, "csv", read_from(checkpoint.seed, state, 3)).digest


def test_a_new_checkpoint_without_a_snapshot_begins_empty(checkpoint: Checkpoint) -> None:
    """There is no lineage before the job is bound."""
    told = begin(rooms(), settings(), checkpoint)
    assert told == (
        "The job starts without state: its checkpoint is new, and no savepoint or dump was given."
    )
    assert files(checkpoint.folder) == {}


def test_a_savepoint_gives_states_positions_and_the_files_of_sources(
    checkpoint: Checkpoint, savepoint: Path, tmp_path: Path
) -> None:
    """All of it is in place by the time there is a lineage, which names its origin."""
    told = begin(rooms(), settings(from_savepoint=str(savepoint)), checkpoint)
    assert told == (
        f"The job starts from the savepoint s-1 of 'drawn' after micro-batch 7, in {savepoint}: 10 keys of step 0. Its "
        "checkpoint is new."
    )
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    assert lineage == Lineage(
        lineage.id,
        "drawn",
        GROUPS,
        3,
        ("readings-0", "commands"),
        Origin("savepoint", "s-1", str(savepoint), 7, "its checkpoint was new, and the savepoint was given"),
        POSITIONS,
        0,
    )
    assert (checkpoint.folder / "sources" / "readings-0.files").read_bytes() == b'"a"\n"b"\n"c"\n'
    assert (checkpoint.folder / "fetched" / "one").read_bytes() == b"1"
    assert digest(checkpoint, tmp_path / "again") == read_manifest(open_store(str(savepoint))).digest
    assert sorted(p.name for p in checkpoint.folder.iterdir()) == [
        "fetched",
        "lineage.json",
        "seed",
        "sources",
    ]


def test_a_dump_gives_states_and_streams_begin_as_they_are_bound(checkpoint: Checkpoint, dump: Path) -> None:
    """A dump lacks the files that give positions their meaning."""
    told = begin(rooms(), settings(from_dump=str(dump)), checkpoint)
    assert told.startswith(
        f"The job starts from the dump s-1 of 'drawn' after micro-batch 7, in {dump}: 10 keys"
    )
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    assert (lineage.origin.kind, lineage.positions) == ("dump", {})


def test_a_savepoint_may_be_taken_without_its_positions(checkpoint: Checkpoint, savepoint: Path) -> None:
    """Then the files of the sources are not copied either."""
    begin(rooms(), settings(from_savepoint=str(savepoint), keep_positions=False), checkpoint)
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    assert lineage.positions == {}
    assert not (checkpoint.folder / "sources").exists()


def test_positions_of_kafka_may_be_taken_from_a_dump(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Kafka offsets mean the same everywhere; those of streams that the job no longer has are dropped."""
    kafka = {"readings": {"0": 17}}
    snapshot(tmp_path / "dump", "jsonl", positions={"readings-0": kafka, "gone": {"position": 5}})
    begin(rooms(), settings(from_dump=str(tmp_path / "dump"), keep_positions=True), checkpoint)
    lineage = checkpoint.stored_lineage()
    assert lineage is not None
    assert lineage.positions == {"readings-0": kafka}


def test_positions_of_files_in_a_dump_are_refused(checkpoint: Checkpoint, dump: Path) -> None:
    """They count files and bytes that the dump does not contain."""
    with pytest.raises(SnapshotError) as caught:
        begin(rooms(), settings(from_dump=str(dump), keep_positions=True), checkpoint)
    assert str(caught.value) == (
        f"The dump {dump} does not have the files and journals of the stream 'readings-0', so its position in them "
        "means nothing. Start from a savepoint, or without --keep-positions."
    )
    assert files(checkpoint.folder) == {}


def test_a_checkpoint_comes_before_any_snapshot(
    tmp_path: Path, savepoint: Path, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message says that the snapshot was not used."""
    folder = tmp_path / "cp"
    checkpoint = committed_rooms(folder, monkeypatch).checkpoint
    before = files(folder)
    goes_on = f"The job resumes from its checkpoint {folder}."
    unused = " The given snapshot is only for a new checkpoint; --fresh puts the old one aside."
    assert begin(rooms(), settings(), checkpoint) == goes_on
    assert begin(rooms(), settings(from_savepoint=str(savepoint)), checkpoint) == goes_on + unused
    assert begin(rooms(), settings(from_dump=str(dump)), checkpoint) == goes_on + unused
    assert files(folder) == before


def test_a_checkpoint_with_other_steps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the migration path."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    with pytest.raises(StateMismatchError) as caught:
        begin(job_of([*steps(), StepWith({}, (int,), [{}, {}])], GROUPS), settings(), checkpoint)
    assert str(caught.value) == (
        f"The checkpoint {checkpoint.folder} has the steps step 0, and the job has step 0, step 1 ('step 1' differ). "
        "Take a savepoint of the checkpoint with penstock savepoint, and start the changed job from it with a new "
        "checkpoint and --from-savepoint."
    )


def test_a_checkpoint_with_states_that_do_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before anything runs."""
    checkpoint = committed_rooms(tmp_path / "cp", monkeypatch).checkpoint
    with pytest.raises(
        StateMismatchError, match="step 0/limit: it is declared as string, and found as int64"
    ):
        begin(rooms(limit=ps.ValueState(str)), settings(), checkpoint)
    begin(rooms(limit=ps.ValueState(int)), settings(), checkpoint)


def test_a_savepoint_may_be_named_by_its_id(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The id is looked up beside the checkpoint; for an unknown id the error lists the known ones."""
    snapshot(tmp_path / "cp.savepoints" / "s-1", "arrow")
    with pytest.raises(NotThereError) as caught:
        begin(rooms(), settings(from_savepoint="s-2"), checkpoint)
    assert str(caught.value) == (
        f"There is no savepoint 's-2' in {tmp_path / 'cp.savepoints'}; it has s-1. Name one of them, or the place of "
        "another."
    )
    assert "from the savepoint s-1" in begin(rooms(), settings(from_savepoint="s-1"), checkpoint)


def test_a_dump_is_no_savepoint(checkpoint: Checkpoint, dump: Path) -> None:
    """The message names the right option for a dump."""
    with pytest.raises(SnapshotError, match=r"is a dump\. Start from it with --from-dump\."):
        begin(rooms(), settings(from_savepoint=str(dump)), checkpoint)


def test_what_becomes_of_states_is_told(checkpoint: Checkpoint, savepoint: Path, tmp_path: Path) -> None:
    """The report names changed states only, not those that are kept unchanged."""
    job = rooms(most=ps.ValueState(int, renamed_from="limit"), note=ps.ValueState(str))
    told = begin(job, settings(from_savepoint=str(savepoint)), checkpoint)
    assert told.endswith(
        ": 10 keys of step 0; step 0/most renamed, step 0/note added (it begins without values), step 0/factor dropped "
        "(the step no longer declares it). Its checkpoint is new."
    )
    assert planned_changes(job, str(savepoint), allow_non_restored_state=False) == [
        Change("step 0", "most", "limit", "renamed"),
        Change("step 0", "note", "", "added", "it begins without values"),
        Change("step 0", "factor", "factor", "dropped", "the step no longer declares it"),
    ]


def test_states_that_do_not_fit_are_refused_before_anything_is_written(
    checkpoint: Checkpoint, savepoint: Path
) -> None:
    """The error has the declared and the found type."""
    with pytest.raises(
        StateMismatchError, match=f"The state in {savepoint} does not fit the job: step 0/limit"
    ):
        begin(rooms(limit=ps.ListState(int)), settings(from_savepoint=str(savepoint)), checkpoint)
    assert files(checkpoint.folder) == {}


def test_steps_that_are_gone_are_left_behind_on_demand(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The report names them."""
    job = job_of([StepWith({"a": ps.ValueState(int)}, (int,), [{}, {}])] * 2, GROUPS)
    state = declared_state(job)
    captured(tmp_path / "two", state, "arrow", lambda node, reader: [])  # as a reader
    one = job_of([StepWith({"a": ps.ValueState(int)}, (int,), [{}, {}])], GROUPS)
    with pytest.raises(StateMismatchError, match="--allow-non-restored-state"):
        begin(one, settings(from_savepoint=str(tmp_path / "two")), checkpoint)
    allowed = settings(from_savepoint=str(tmp_path / "two"), allow_non_restored_state=True)
    assert "step 1/a dropped (the step is no longer in the job)" in begin(one, allowed, checkpoint)


def test_a_damaged_snapshot_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A damaged manifest is found before anything is written, a damaged file before there is a lineage."""
    place = tmp_path / "sp"
    snapshot(place, "arrow")
    wanted = settings(from_savepoint=str(place))
    whole = files(place)
    for name, content in whole.items():
        if name.endswith("schema.json"):
            continue
        (place / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(DamagedSnapshotError):
            begin(rooms(), wanted, checkpoint)
        assert checkpoint.stored_lineage() is None
        if name == MANIFEST:
            assert files(checkpoint.folder) == {}
        (place / name).write_bytes(content)
    (place / MANIFEST).unlink()
    with pytest.raises(NotThereError, match="There is no snapshot in"):
        begin(rooms(), wanted, checkpoint)
    (place / MANIFEST).write_bytes(whole[MANIFEST])
    assert "10 keys" in begin(rooms(), wanted, checkpoint)


def test_a_file_outside_of_the_checkpoint_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Paths that leave the checkpoint are refused, whoever wrote the snapshot."""
    place = tmp_path / "sp"
    manifest = snapshot(place, "arrow")
    import msgspec

    from penstock.snapshots.manifest import FileEntry, to_bytes

    bad = msgspec.structs.replace(manifest, files=(FileEntry("../outside", 0, 1, "0"),))
    (place / MANIFEST).write_bytes(to_bytes(bad))
    with pytest.raises(CheckpointError, match="which is outside the checkpoint"):
        begin(rooms(), settings(from_savepoint=str(place)), checkpoint)
    assert checkpoint.stored_lineage() is None


@pytest.mark.parametrize("name", ["seed", "sources", "fetched"])
def test_folders_that_are_there_already_are_not_touched(
    checkpoint: Checkpoint, savepoint: Path, name: str
) -> None:
    """They may be the user's."""
    (checkpoint.folder / name).mkdir()
    (checkpoint.folder / name / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match=r"was not made by penstock\. Choose an empty folder"):
        begin(rooms(), settings(from_savepoint=str(savepoint)), checkpoint)
    assert files(checkpoint.folder) == {f"{name}/mine": b"mine"}


def test_a_killed_start_begins_anew_or_is_complete(tmp_path: Path, savepoint: Path) -> None:
    """Wherever the kill falls, the next start works, with the same savepoint or without any."""
    wanted = settings(from_savepoint=str(savepoint))
    straight = Checkpoint.open(str(tmp_path / "straight"))
    begin(rooms(), wanted, straight)
    expected = {k: v for k, v in files(straight.folder).items() if k != "lineage.json"}
    for number in itertools.count():
        checkpoint = Checkpoint.open(str(tmp_path / f"cp-{number}"))
        other = Checkpoint.open(str(tmp_path / f"other-{number}"))
        try:
            with crashes(number):
                begin(rooms(), wanted, checkpoint)
        except Crash:
            pass
        else:
            break
        with pytest.raises(Crash), crashes(number):
            begin(rooms(), wanted, other)
        was_complete = checkpoint.stored_lineage() is not None
        told = begin(rooms(), wanted, checkpoint)
        assert told.startswith("The job resumes" if was_complete else "The job starts from the savepoint")
        found = {k: v for k, v in files(checkpoint.folder).items() if ".tmp" not in k}
        assert found.pop("lineage.json")
        assert found == expected, number
        if not was_complete:
            begin(rooms(), settings(), other)
            left = {k: v for k, v in files(other.folder).items() if ".tmp" not in k}
            assert left == {}, number
    assert number > 20


def test_an_existing_checkpoint_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works repeatedly; a folder that is no checkpoint stays where it is."""
    import threading

    folder = tmp_path / "cp"
    assert put_aside(folder, threading.Event(), 0) is None
    folder.mkdir()
    assert put_aside(folder, threading.Event(), 0) is None
    folder.rmdir()
    for number in (1, 2, 3):
        committed_rooms(folder, monkeypatch)
        assert put_aside(folder, threading.Event(), 0) == tmp_path / f"cp.before-{number}"
        assert not folder.exists()
        assert (tmp_path / f"cp.before-{number}" / STATE_FILE).exists()


def test_an_edited_dump_without_rows_gives_an_empty_state(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The same goes for shared states."""
    place = tmp_path / "dump"
    snapshot(place, "csv")
    for path in place.rglob("part-*.csv"):
        if "__" not in str(path):
            path.write_text(path.read_text().splitlines()[0] + "\n")
    accept(str(place))
    assert verify(str(place)).sound
    told = begin(rooms(), settings(from_dump=str(place)), checkpoint)
    assert ": 0 keys of step 0." in told
    assert digest(checkpoint, tmp_path / "again") == read_manifest(open_store(str(place))).digest


def test_data_that_waits_needs_the_same_key_groups(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Held data is stored by key group."""
    from stored_jobs import JobWith, StoredJob

    with_held = StepWith({"limit": ps.ValueState(int)}, (int,), [{}, {}], held=[(1, b"block")])
    before = StoredJob(JobWith([with_held], GROUPS), 2)
    captured(tmp_path / "sp", before.state, "arrow", before.read)
    wanted = settings(from_savepoint=str(tmp_path / "sp"))
    with pytest.raises(SnapshotError) as caught:
        begin(job_of([with_held], GROUPS + 1), wanted, checkpoint)
    assert str(caught.value) == (
        "The step 'step 0' was paused when the snapshot 's-1' was taken, and data waits in it by key group. Start with "
        "the same number of key groups, or take one after a resume."
    )
    assert checkpoint.stored_lineage() is None
    assert "starts from the savepoint" in begin(job_of([with_held], GROUPS), wanted, checkpoint)


def test_columns_of_a_seed_are_those_of_the_job(checkpoint: Checkpoint, savepoint: Path) -> None:
    """So the first micro-batch has nothing to convert."""
    begin(rooms(), settings(from_savepoint=str(savepoint)), checkpoint)
    versions = sorted(checkpoint.seed.rglob("version*"))
    assert versions
    for path in versions:
        schema = pa.ipc.open_stream(path.read_bytes()).schema
        assert schema.remove_metadata().equals(pa.schema([("key", pa.int64()), ("limit", pa.int64())]))
