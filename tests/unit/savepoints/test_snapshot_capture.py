"""Capturing: slots become a snapshot, which restores equally for any number of tasks and key groups."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples
from random_jobs import drawn_jobs
from rooms_job import committed_rooms, stored_rooms
from stored_jobs import JobWith, StoredJob, captured, job_of, read_from

from penstock.checkpoints.checkpoint import Checkpoint, Origin
from penstock.checkpoints.evolution import plan_changes
from penstock.control.commands import Command, Target
from penstock.control.register import Register
from penstock.engine.slot import Header, merge_headers
from penstock.errors import CheckpointError
from penstock.jobs.restore import declared_state
from penstock.savepoints import snapshot_capture, source_files
from penstock.savepoints.snapshot_capture import Capture, capture, find_committed_batch
from penstock.savepoints.source_files import OvertakenError
from penstock.savepoints.state_restore import Snapshot, write_seed
from penstock.snapshots import stores
from penstock.snapshots.digests import Digest
from penstock.snapshots.manifest import Manifest
from penstock.snapshots.snapshot_reader import verify

NO_SESSION: Any = None
# Thousands of small files, which need not reach a disk.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a folder of its own is made there


def check_expected(job: StoredJob, manifest: Manifest) -> None:
    """Check that the snapshot has the values that were set."""
    for name, (spec, keys, values, key_type) in job.expected.items():
        if name not in {table.name for table in manifest.tables}:
            continue
        schema = manifest.table(name).arrow_schema
        if pa.types.is_struct(key_type):
            names = [field.name for field in key_type]
            keys = [dict(zip(names, key, strict=True)) for key in keys]
        columns = [pa.array(keys, key_type), spec.to_arrow(values)]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        assert manifest.table(name).digest == Digest.of([rows]).hex(), name


@given(
    drawn=drawn_jobs(),
    before=st.integers(1, 10),
    after=st.integers(1, 10),
    key_groups=st.integers(1, 9),
    form=st.sampled_from(["csv", "jsonl", "parquet", "arrow"]),
    again=st.sampled_from(["csv", "jsonl", "parquet", "arrow"]),
)
@settings(examples(50), suppress_health_check=list(HealthCheck))
def test_a_snapshot_of_what_began_from_a_snapshot_has_the_same_content(
    drawn: JobWith, before: int, after: int, key_groups: int, form: str, again: str
) -> None:
    """All kinds of state, keys and formats are tested, at another parallelism and with other key groups.

    Data held for a paused step is stored by key group, and needs the same ones.
    """
    stored = StoredJob(drawn, before)
    if any(step.held for step in drawn.steps):
        key_groups = drawn.key_groups
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        first = captured(folder / "first", stored.state, form, stored.read)
        check_expected(stored, first)
        state = declared_state(job_of(drawn.steps, key_groups))
        changes = plan_changes(state.steps, stored.state.steps)
        assert {change.outcome for change in changes} <= {"kept"}
        keys = write_seed(Snapshot.at(str(folder / "first")), state, after, changes, folder / "seed")
        second = captured(folder / "second", state, again, read_from(folder / "seed", state, after))
        assert second.digest == first.digest
        assert keys == {name: keys_of(stored, name) for name in state.steps}
        assert verify(str(folder / "second")).defects == ()


def keys_of(stored: StoredJob, step: str) -> int:
    """Return how many keys of a step hold state."""
    held: set[Any] = set()
    for name, (_, keys, _, _) in stored.expected.items():
        if name.startswith(f"{step}/"):
            held.update(keys)
    return len(held)


def test_versions_of_single_keys_never_go_back() -> None:
    """After a rescaling every slot has all versions, and only the key's own continues."""

    def register(version: int) -> bytes:
        found = Register()
        command = Command(id=f"c-{version}", kind="set", target=Target(step="s", key=5), version=version)
        found.note_key(command, 5)
        return found.dump()

    for versions in ([3, 7, 3], [7, 3, 3], [3, 3, 7]):
        together = merge_headers([Header(register=register(version)) for version in versions])
        assert Register(together.register).dump() == register(7)


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    """So dumps of one micro-batch can be compared as files, for any number of tasks."""
    for form in ("csv", "jsonl", "parquet", "arrow"):
        files = []
        for number in range(2):
            stored = stored_rooms()
            place = tmp_path / f"{form}-{number}"
            captured(place, stored.state, form, stored.read)
            files.append({p.relative_to(place): p.read_bytes() for p in place.rglob("*") if p.is_file()})
        assert files[0] == files[1]


def test_only_micro_batches_that_are_kept_can_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before a rescaling are deleted."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    lineage = rooms.checkpoint.stored_lineage()
    assert lineage is not None
    assert find_committed_batch(rooms.checkpoint, lineage, None) == 2
    assert find_committed_batch(rooms.checkpoint, lineage, 0) == 0
    later = msgspec.structs.replace(lineage, first_batch=10)
    assert find_committed_batch(rooms.checkpoint, later, None) == 12
    with pytest.raises(CheckpointError, match=r"after micro-batch 2; it keeps 10 to 12\."):
        find_committed_batch(rooms.checkpoint, later, 2)
    for path in (rooms.folder / "commits").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="has committed no micro-batch yet"):
        find_committed_batch(rooms.checkpoint, lineage, None)
    seeded = msgspec.structs.replace(later, origin=Origin("rescale"))
    assert find_committed_batch(rooms.checkpoint, seeded, None) == 9
    with pytest.raises(CheckpointError, match="has committed no micro-batch yet"):
        find_committed_batch(rooms.checkpoint, seeded, 8)


def test_a_savepoint_has_the_files_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal's mark is copied before its segments; a dump has none of these files."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    for name in ("sources/a.journal/0001", "sources/a.journal/mark", "sources/b.files", "fetched/x/y"):
        path = rooms.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    written: list[str] = []
    create = stores._FolderStore.create

    def noted(store: Any, path: str, data: Any) -> None:
        written.append(path)
        create(store, path, data)

    monkeypatch.setattr(stores._FolderStore, "create", noted)
    manifest = capture(NO_SESSION, rooms.checkpoint, Capture("savepoint", str(tmp_path / "sp"), "arrow"))
    assert written[0] == "sources/a.journal/mark"
    assert written[-1] == "manifest.json"
    assert [file.path for file in manifest.files] == [
        "fetched/x/y",
        "sources/a.journal/0001",
        "sources/a.journal/mark",
        "sources/b.files",
    ]
    assert capture(NO_SESSION, rooms.checkpoint, Capture("dump", str(tmp_path / "d"), "csv")).files == ()


def test_a_savepoint_keeps_what_the_job_deletes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment deleted during the copy is in it; if it is gone before it is opened, the copy restarts."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    journal = rooms.folder / "sources" / "readings-0.journal"
    journal.mkdir(parents=True)
    segments = [journal / f"{number:020d}.blocks" for number in (0, 5)]
    for path in segments:
        path.write_bytes(path.name.encode())
    create, listed = stores._FolderStore.create, source_files._paths
    vanished = iter([True, False])

    def deleting(store: Any, path: str, data: Any) -> None:
        segments[0].unlink(missing_ok=True)
        create(store, path, data)

    def listing(folder: Path) -> list[Path]:
        vanishes = folder.name == "sources" and next(vanished)
        return [*listed(folder), journal / "gone.blocks"] if vanishes else listed(folder)

    monkeypatch.setattr(stores._FolderStore, "create", deleting)
    monkeypatch.setattr(source_files, "_paths", listing)
    manifest = capture(NO_SESSION, rooms.checkpoint, Capture("savepoint", str(tmp_path / "sp"), "arrow"))
    assert [Path(file.path).name for file in manifest.files] == [path.name for path in segments]
    assert (tmp_path / "sp" / manifest.files[0].path).read_bytes() == segments[0].name.encode()


def test_a_savepoint_without_what_it_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that starts after the micro-batch would lose records silently."""
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    journal = rooms.folder / "sources" / "late.journal"
    journal.mkdir(parents=True)
    (journal / f"{7:020d}.blocks").write_bytes(b"x")
    with pytest.raises(OvertakenError, match="Take the savepoint again"):
        capture(NO_SESSION, rooms.checkpoint, Capture("savepoint", str(tmp_path / "sp"), "arrow"))
    assert not (tmp_path / "sp").exists()


def test_a_micro_batch_that_is_forgotten_while_it_is_read_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This serves a fast job and a slow reader; a requested micro-batch is not replaced, and damage is an
    error.
    """
    rooms = committed_rooms(tmp_path / "cp", monkeypatch)
    commits = rooms.folder / "commits"
    read_step = snapshot_capture.read_step
    asked: list[int] = []

    def slow_at_first(
        session: Any, checkpoint: Checkpoint, batch: int, node: str, reader: Any
    ) -> list[bytes]:
        asked.append(batch)
        if batch < 2:
            raise CheckpointError("it cannot be read")
        return read_step(session, checkpoint, batch, node, reader)

    def dump(place: str, batch: int | None = None) -> Manifest:
        return capture(
            NO_SESSION, rooms.checkpoint, Capture("dump", str(tmp_path / place), "csv", batch=batch)
        )

    monkeypatch.setattr(snapshot_capture, "read_step", slow_at_first)
    newest = (commits / "2").read_bytes()
    (commits / "2").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        dump("kept")
    assert asked == [1]

    def forgets(session: Any, checkpoint: Checkpoint, batch: int, node: str, reader: Any) -> list[bytes]:
        (commits / "1").unlink(missing_ok=True)
        (commits / "2").write_bytes(newest)
        return slow_at_first(session, checkpoint, batch, node, reader)

    monkeypatch.setattr(snapshot_capture, "read_step", forgets)
    assert dump("newer").batch == 2
    assert asked[:3] == [1, 1, 2]
    (commits / "1").touch()
    with pytest.raises(CheckpointError, match="cannot be read"):
        dump("named", batch=1)
