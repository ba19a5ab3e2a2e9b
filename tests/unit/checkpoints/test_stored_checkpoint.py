"""A checkpoint on an object store: the store has what was saved, and only one run at a time adds to it."""

from __future__ import annotations

import functools
import os
import pickle
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from modelled_hdfs import HdfsFate, ModelledHdfs
from modelled_store import Fate, ModelledStore
from property_examples import some_in_test

from penstock.checkpoints import stored_checkpoint, stored_entries, stored_log
from penstock.checkpoints.ownership import Ownership
from penstock.checkpoints.stored_checkpoint import (
    StoredCheckpoint,
    StoredOwnership,
    is_stored,
    working_folder,
)
from penstock.checkpoints.stored_entries import decode_entry, entry_name
from penstock.checkpoints.stored_home import HOME_FILE
from penstock.checkpoints.write_versions import WriteVersions
from penstock.errors import (
    CheckpointError,
    CheckpointInUseError,
    CheckpointMissingError,
    ExternalSystemError,
    FencedError,
)
from penstock.records.schemas import record_type
from penstock.sources.journal import JournalLog, JournalWriter

Content = Mapping[str, bytes]
FATES: tuple[Fate, ...] = ("answer lost", "fails", "fails but arrives", "fails and arrives late")
HDFS_FATES: tuple[HdfsFate, ...] = ("answer lost", "fails", "fails and arrives late")


def machine(store: ModelledStore | ModelledHdfs, folder: Path, name: str) -> StoredCheckpoint:
    """Provide a machine with an empty working folder, at a path that is the same on all machines."""
    (folder / name).mkdir(parents=True)
    found = StoredCheckpoint(store, "s3://bucket/rooms", folder / name)
    store.forget("about.json")
    return found


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of a folder, without files specific to this machine."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("in-use.lock", HOME_FILE)
    }


def restored(store: ModelledStore | ModelledHdfs, folder: Path, name: str) -> dict[str, bytes]:
    found = machine(store, folder, name)
    found.open()
    return content_of(found.folder)


def test_what_was_saved_comes_back_to_another_machine(tmp_path: Path) -> None:
    store = ModelledStore()
    first = machine(store, tmp_path, "first")
    first.open()
    first.take()
    (first.folder / "state" / "0").mkdir(parents=True)
    (first.folder / "state" / "0" / "1.zip").write_bytes(b"state" * 1000)
    (first.folder / "sources" / "empty").mkdir(parents=True)
    (first.folder / "lineage.json").write_bytes(b"{}")
    os.utime(first.folder / "lineage.json", ns=(5, 7))
    (first.folder / "commits").mkdir()
    (first.folder / "commits" / "0").write_bytes(b"")
    for left in (".x.tmp", "in-use.lock", "spark.log", "output.log.1"):
        (first.folder / left).write_bytes(b"left here")
    first.save()
    second = machine(store, tmp_path, "second")
    (second.folder / "stale").write_bytes(b"gone")
    second.open()
    assert content_of(second.folder) == {
        "commits/0": b"",
        "lineage.json": b"{}",
        "state/0/1.zip": b"state" * 1000,
    }
    assert (second.folder / "sources" / "empty").is_dir()
    assert (second.folder / "lineage.json").stat().st_mtime_ns == 7


def test_only_what_has_changed_is_saved_and_what_has_grown_only_from_there_on(tmp_path: Path) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    run.open()
    run.take()
    log, counts = run.folder / "events.jsonl", run.folder / "counts.json"
    log.write_bytes(b"a" * 5000)
    counts.write_bytes(b"{1}")
    run.save()
    run.save()
    before = store.requests
    with log.open("ab") as file:
        file.write(b"more")
    counts.write_bytes(b"{2}")
    run.save()
    assert store.requests == before + 1
    _, content = decode_entry(store.objects[entry_name(2)], "")
    assert sorted(bytes(content)) == sorted(b"more{2}")
    assert restored(store, tmp_path, "other") == {
        "events.jsonl": b"a" * 5000 + b"more",
        "counts.json": b"{2}",
    }


def test_large_files_are_objects_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_checkpoint, "_PACKED_BYTES", 100)
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    run.open()
    run.take()
    content = {"large": b"x" * 250, "half": b"y" * 60, "other": b"z" * 70, "small": b"s"}
    for name, data in content.items():
        (run.folder / name).write_bytes(data)
    run.save()
    assert len([name for name in store.objects if name.startswith("files/")]) == 2
    assert restored(store, tmp_path, "again") == content


def test_content_that_no_entry_names_is_removed_by_the_next_run(tmp_path: Path) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    run.open()
    run.take()
    store.objects[f"files/{1:010}-broken-off"] = b""
    store.objects[f"files/{3:010}-of-a-later-run"] = b""
    second = machine(store, tmp_path, "second")
    second.open()
    second.take()
    assert [name for name in store.objects if name.startswith("files/")] == [f"files/{3:010}-of-a-later-run"]


def test_a_run_that_was_believed_dead_adds_nothing_more(tmp_path: Path) -> None:
    store = ModelledStore()
    zombie = machine(store, tmp_path, "zombie")
    zombie.open()
    zombie.take()
    (zombie.folder / "a").write_bytes(b"1")
    zombie.save()
    owner = machine(store, tmp_path, "owner")
    owner.open()
    owner.take()
    (zombie.folder / "a").write_bytes(b"2")
    with pytest.raises(FencedError, match="its epoch is 2, this run's 1"):
        zombie.check()
    with pytest.raises(FencedError):
        zombie.save()
    owner.check()
    assert restored(store, tmp_path, "third") == {"a": b"1"}


def test_a_start_is_refused_when_the_other_run_goes_on_meanwhile(tmp_path: Path) -> None:
    store = ModelledStore()
    owner = machine(store, tmp_path, "owner")
    owner.open()
    owner.take()
    second = machine(store, tmp_path, "second")
    second.open()
    (owner.folder / "a").write_bytes(b"1")
    owner.save()
    with pytest.raises(CheckpointInUseError, match="is in use by another run"):
        second.take()
    owner.check()
    (owner.folder / "a").write_bytes(b"12")
    owner.save()


def test_a_start_that_slept_while_entries_came_and_went_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tables_every(monkeypatch, 2)
    store = ModelledStore()
    owner = machine(store, tmp_path, "owner")
    owner.open()
    owner.take()
    sleeper = machine(store, tmp_path, "sleeper")
    sleeper.open()
    for number in range(9):
        (owner.folder / "a").write_bytes(b"%d" % number)
        owner.save()
    assert entry_name(1) not in store.objects
    with pytest.raises(CheckpointInUseError):
        sleeper.take()
    (owner.folder / "a").write_bytes(b"last")
    owner.save()
    assert restored(store, tmp_path, "another") == {"a": b"last"}


def test_a_store_that_replaces_objects_is_refused(tmp_path: Path) -> None:
    store = ModelledStore()
    store.replaces = True
    run = machine(store, tmp_path, "run")
    run.open()
    with pytest.raises(CheckpointError, match="replaces objects"):
        run.take()


def test_changed_bytes_and_missing_objects_are_found(tmp_path: Path) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    run.open()
    run.take()
    (run.folder / "a").write_bytes(b"content")
    run.save()
    whole = store.objects[entry_name(1)]
    store.objects[entry_name(1)] = whole[:-1] + b"?"
    with pytest.raises(CheckpointError, match="has changed bytes, of the file a"):
        restored(store, tmp_path, "second")
    store.objects[entry_name(1)] = b"no entry"
    with pytest.raises(CheckpointError, match="log/0000000001 is not an entry"):
        restored(store, tmp_path, "third")
    store.objects[entry_name(2)] = whole.replace(b'"number":1', b'"number":2')
    del store.objects[entry_name(1)]
    with pytest.raises(CheckpointError, match="log/0000000001 is missing"):
        restored(store, tmp_path, "fourth")


def test_a_job_that_must_continue_finds_its_checkpoint(tmp_path: Path) -> None:
    run = machine(ModelledStore(), tmp_path, "run")
    with pytest.raises(CheckpointMissingError, match="there is nothing of it"):
        run.open(must_continue=True)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (b"{}", "is not of a checkpoint"),
        (b'{"checkpoint":2,"folder":""}', "has the format 2"),
        (b'{"checkpoint":1,"folder":"/elsewhere/x"}', "TMPDIR=/elsewhere"),
    ],
)
def test_a_prefix_with_something_else_is_refused(tmp_path: Path, about: bytes, message: str) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    store.objects["about.json"] = about
    with pytest.raises(CheckpointError, match=message):
        run.open()


def test_after_a_failed_entry_a_run_adds_no_more(tmp_path: Path) -> None:
    """The store may have that entry, or get it later."""
    fates: list[Fate] = []
    store = ModelledStore(lambda: fates.pop() if fates else "well")
    run = machine(store, tmp_path, "run")
    run.open()
    run.take()
    (run.folder / "a").write_bytes(b"1")
    fates.append("fails and arrives late")
    with pytest.raises(ExternalSystemError):
        run.save()
    with pytest.raises(CheckpointError, match="saves no more"):
        run.save()
    store.arrive()
    assert restored(store, tmp_path, "second") == {"a": b"1"}


def test_the_end_of_a_run_is_saved_also_after_a_failure(tmp_path: Path) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")

    def fail() -> None:
        with run.opened():
            run.take()
            (run.folder / "events.jsonl").write_bytes(b"failed")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert restored(store, tmp_path, "second") == {"events.jsonl": b"failed"}


def test_a_run_that_was_refused_changes_nothing(tmp_path: Path) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    with run.opened():
        (run.folder / "a").write_bytes(b"1")
    assert not store.objects


def test_ownership_takes_over_and_travels_without_the_store(tmp_path: Path) -> None:
    store = ModelledStore()
    run = machine(store, tmp_path, "run")
    run.open()
    ownership = StoredOwnership(run, Ownership.of_next_run(run.folder))
    ownership.begin()
    ownership.check()
    assert ownership.epoch == 1
    assert restored(store, tmp_path, "second") == content_of(run.folder)
    travelled = pickle.loads(pickle.dumps(ownership.check))
    travelled()


def test_versions_of_writes_do_not_go_back_when_the_disk_is_lost(tmp_path: Path) -> None:
    """The clock of the next machine is an hour slow."""
    store = ModelledStore()
    versions = []
    for name, wall_us in (("first", 7_200_000_000), ("second", 3_600_000_000)):
        run = machine(store, tmp_path, name)
        run.open()
        ownership = StoredOwnership(run, Ownership.of_next_run(run.folder))
        ownership.begin()
        versions.append(WriteVersions(run.folder, ownership, lambda us=wall_us: us, lambda: 0).next())
    assert versions[0] < versions[1]


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert is_stored("az://container/rooms")
    assert working_folder("s3://bucket/rooms/") == working_folder("s3://bucket/rooms")
    assert working_folder("s3://bucket/rooms").parent == tmp_path
    assert is_stored("hdfs://namenode:8020/rooms")
    assert working_folder("hdfs://namenode:8020/rooms") != working_folder("hdfs://other:8020/rooms")
    for wrong in (
        "hdfs://namenode:8020",
        "hdfs://me@namenode/x",
        "s3://",
        "s3://bucket",
        "s3://user@bucket/x",
        "s3://bucket/a/../b",
    ):
        with pytest.raises(CheckpointError, match="cannot hold a checkpoint"):
            working_folder(wrong)


def _tables_every(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for module in (stored_entries, stored_log):
        monkeypatch.setattr(module, "TABLE_EVERY", number)


@pytest.mark.parametrize("seed", some_in_test(range(60), every=3))
def test_whatever_happens_one_run_owns_the_checkpoint_and_nothing_saved_is_lost(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts, saves, zombies, lost answers and late requests happen in any order, on machines that share only
    the store.
    """
    chance = random.Random(seed)
    faulty = seed % 2 == 1
    store = ModelledStore(lambda: chance.choice(FATES) if faulty and chance.random() < 0.15 else "well")
    _live_through(store, chance, tmp_path, monkeypatch)


@pytest.mark.parametrize("seed", some_in_test(range(40), every=3))
def test_whatever_happens_so_it_is_on_hdfs(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with the real client over a model of HDFS, where an entry takes several requests."""
    chance = random.Random(seed)
    rate = 0.1 if seed % 2 else 0.0
    hdfs = ModelledHdfs(monkeypatch, lambda: chance.choice(HDFS_FATES) if chance.random() < rate else "well")
    _live_through(hdfs, chance, tmp_path, monkeypatch)


def test_an_hdfs_that_replaces_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = ModelledHdfs(monkeypatch)
    hdfs.replaces = True
    run = machine(hdfs, tmp_path, "run")
    run.open()
    with pytest.raises(CheckpointError, match="replaces objects"):
        run.take()


def _live_through(
    store: ModelledStore | ModelledHdfs,
    chance: random.Random,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _tables_every(monkeypatch, 3)
    monkeypatch.setattr(stored_checkpoint, "_PACKED_BYTES", 64)
    runs: list[StoredCheckpoint] = []
    taken: set[int] = set()
    owner: int | None = None
    unsure = False
    dead: set[StoredCheckpoint] = set()
    # What a new run may find: the last save, or an entry whose outcome its writer does not know.
    possible: list[Content] = [{}]
    for step in range(40):
        if chance.random() < 0.2:
            store.arrive()
        if not runs or chance.random() < 0.15:
            run = machine(store, tmp_path, f"{step}")
            try:
                run.open()
            except CheckpointInUseError:
                continue
            runs.append(run)
            assert content_of(run.folder) in possible
            continue
        number = chance.randrange(len(runs))
        run = runs[number]
        if number not in taken:
            before = content_of(run.folder)
            try:
                run.take()
            except (CheckpointInUseError, ExternalSystemError) as e:
                # It was refused, or does not know whether it has taken over; it saves nothing.
                unsure = unsure or isinstance(e, ExternalSystemError)
                del runs[number]
                taken = {one - (one > number) for one in taken}
                owner = None if owner is None else owner - (owner > number)
                continue
            taken.add(number)
            owner = number
            assert before in possible
            possible = [before]
            continue
        _change(run.folder, chance)
        try:
            run.save()
        except FencedError:
            dead.add(run)
            assert number != owner or unsure
        except CheckpointError:
            assert run in dead
        except ExternalSystemError:
            dead.add(run)
            possible.append(content_of(run.folder))
        else:
            assert number == owner
            possible = [content_of(run.folder)]
    store.arrive()
    assert restored(store, tmp_path, "end") in possible


def _change(folder: Path, chance: random.Random) -> None:
    path = folder / chance.choice(["a", "b", "state/c", "state/d"])
    path.parent.mkdir(exist_ok=True)
    match chance.randrange(4):
        case 0:
            path.unlink(missing_ok=True)
        case 1:
            with path.open("ab") as file:
                file.write(chance.randbytes(chance.randrange(40)))
        case 2:
            path.with_name("new").write_bytes(chance.randbytes(chance.randrange(90)))
            path.with_name("new").replace(path)
        case _:
            path.write_bytes(b"%d" % chance.randrange(100))


@pytest.mark.parametrize("seed", range(20))
def test_what_a_journal_has_taken_is_there_when_its_machine_is_gone(seed: int, tmp_path: Path) -> None:
    """Any requests may fail; other files are as of the last save, however often the journal was saved since."""
    chance = random.Random(seed)
    store = ModelledStore(lambda: chance.choice(FATES) if chance.random() < 0.1 else "well")
    # The group in progress when a machine was lost may or may not be there.
    possible: list[list[bytes]] = [[]]
    counts = {b""}
    number = 0
    for life in range(6):
        run = machine(store, tmp_path, str(life))
        run.open()
        assert content_of(run.folder).get("counts.json", b"") in counts
        journal = journal_of(run)
        taken = records_of(run.folder)
        assert taken in possible
        try:
            run.take()
            for _ in range(chance.randrange(12)):
                number += 1
                group = [b"%d" % number, bytes(chance.randrange(40))]
                (run.folder / "counts.json").write_bytes(b"%d" % number)
                possible = [taken, taken + group]
                journal.append(group)
                assert records_of(run.folder) == taken + group
                taken = taken + group
                possible = [taken]
                if chance.random() < 0.3:
                    counts.add(b"%d" % number)
                    run.save()
                    counts = {b"%d" % number}
        except ExternalSystemError:
            if journal.has_failed:
                assert records_of(run.folder) == taken
        journal.close()
        store.arrive()


def test_a_journal_of_a_run_that_was_believed_dead_takes_nothing(tmp_path: Path) -> None:
    """The sender gets no acknowledgement, and no reader sees the record."""
    store = ModelledStore()
    first = machine(store, tmp_path, "first")
    first.open()
    first.take()
    journal = journal_of(first)
    journal.append([b"one"])
    second = machine(store, tmp_path, "second")
    second.open()
    journal_of(second).close()
    second.take()
    with pytest.raises(FencedError):
        journal.append([b"two"])
    journal.close()
    assert records_of(first.folder) == records_of(second.folder) == [b"one"]


def journal_of(run: StoredCheckpoint) -> JournalWriter:
    keep = functools.partial(run.keep, "readings.journal")
    return JournalWriter(run.folder / "readings.journal", 60, keep)


def records_of(folder: Path) -> list[bytes]:
    """Return the journal's records that readers see, through splits."""
    log = JournalLog(folder / "readings.journal", carries=True)
    chunks = log.read(log.splits(0, log.latest(0, limited=False), 2), record_type("line STRING"))
    return [record for chunk in chunks if chunk.raw is not None for record in chunk.raw.to_pylist()]
