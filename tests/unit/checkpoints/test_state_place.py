"""The place of state on a store: a new one for each run until something is committed, then always the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from modelled_store import ModelledStore

from penstock.checkpoints.spark_checkpoint import Expected, inspect
from penstock.checkpoints.state_files import state_target
from penstock.checkpoints.state_place import StatePlace, place_state, state_place
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.checkpoints.stored_home import note_home
from penstock.errors import CheckpointError
from penstock.objects.object_stores import Place

SHOWN = "s3://bucket/rooms"


def placed(folder: Path, *, is_local: bool = False) -> StatePlace | None:
    return place_state(folder, SHOWN, is_local=is_local)


def commit(folder: Path, number: int = 0, ids: tuple[str, ...] = ("a", "b")) -> None:
    """Write Spark's files of a committed micro-batch with a state of two partitions."""
    for log, lines in (("offsets", ["v1", "{}", "{}"]), ("commits", ["v2", _ids(ids)])):
        (folder / log).mkdir(exist_ok=True)
        (folder / log / str(number)).write_text("\n".join(lines))
    (folder / "metadata").write_text('{"id":"x"}')


def _ids(ids: tuple[str, ...]) -> str:
    return json.dumps({"stateUniqueIds": {"0": [[one] for one in ids]}})


def test_state_stays_in_the_folder_where_all_tasks_are_on_this_machine(tmp_path: Path) -> None:
    assert placed(tmp_path, is_local=True) is None
    assert state_place(tmp_path) is None
    assert state_target(tmp_path) is None


def test_each_run_begins_in_a_place_of_its_own_until_one_has_committed(tmp_path: Path) -> None:
    """This holds also for a job that starts from a seed, as after a savepoint or a rescaling."""
    (tmp_path / "seed").mkdir()
    first, second = placed(tmp_path), placed(tmp_path, is_local=True)
    assert None not in (first, second)
    assert first != second
    commit(tmp_path)
    for is_local in (False, True):
        assert placed(tmp_path, is_local=is_local) == second


def test_a_job_that_has_run_on_one_machine_cannot_go_on_on_others(tmp_path: Path) -> None:
    """Before its first commit it can, even if it starts from a seed."""
    commit(tmp_path)
    with pytest.raises(CheckpointError, match=r"s3://bucket/rooms on one machine.*--master 'local\[\*\]'"):
        placed(tmp_path)
    assert state_place(tmp_path) is None


def test_the_state_is_found_by_the_home_of_the_folder(tmp_path: Path) -> None:
    """The driver notes the home for other processes of its machine; a copy of the folder has no such note."""
    place = placed(tmp_path)
    assert place is not None
    with pytest.raises(CheckpointError, match="does not say where"):
        state_target(tmp_path)
    note_home(tmp_path, "s3://bucket/a b/50%25")
    assert state_target(tmp_path) == Place("s3", "bucket", f"a b/50%25/state/{place.id}")
    (tmp_path / "home.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"home\.json cannot be read"):
        state_target(tmp_path)


def test_a_broken_file_is_damage(tmp_path: Path) -> None:
    (tmp_path / "state-place.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state-place\.json cannot be read"):
        state_place(tmp_path)


def test_state_elsewhere_is_not_looked_for_in_the_folder(tmp_path: Path) -> None:
    commit(tmp_path)
    with pytest.raises(CheckpointError, match="is missing"):
        inspect(tmp_path, Expected(1))
    assert inspect(tmp_path, Expected(1, state_is_here=False)).committed == 0


def test_the_store_must_have_the_state_of_the_newest_commit(tmp_path: Path) -> None:
    store = ModelledStore()
    stored = StoredCheckpoint(store, SHOWN, tmp_path)
    place = StatePlace("x1")
    stored.check_state(place)
    commit(tmp_path, 3)
    store.objects |= {"state/x1/0/0/4_a.changelog": b"", "state/x1/0/1/4_c.zip": b""}
    with pytest.raises(
        CheckpointError, match=r"s3://bucket/rooms/state/x1/0/1/4_b\.changelog is missing\. Restore"
    ):
        stored.check_state(place)
    store.objects["state/x1/0/1/4_b.zip"] = b""
    stored.check_state(place)


def test_what_no_longer_counts_is_removed_if_the_store_lets_us(tmp_path: Path) -> None:
    """Removed are other places of the state, and captures of interrupted rescalings; nothing while state is
    in the folder.
    """
    store = ModelledStore()
    stored = StoredCheckpoint(store, SHOWN, tmp_path)
    left = {"state/x1/0/0/4_a.changelog": b"", "rescaling/1/manifest.json": b""}
    store.objects |= left
    stored.remove_left_behind()
    assert store.objects == left
    place = placed(tmp_path)
    assert place is not None
    mine = f"{place.prefix}/0/0/4_a.zip"
    store.objects |= {mine: b"", "log/0000000001": b""}
    stored.remove_left_behind()
    assert list(store.objects) == [mine, "log/0000000001"]
    StoredCheckpoint(ModelledStore(lambda: "fails"), SHOWN, tmp_path).remove_left_behind()


def test_the_state_is_below_the_prefix_of_the_checkpoint(tmp_path: Path) -> None:
    place = StoredCheckpoint(ModelledStore(), SHOWN, tmp_path).place_of("state/x1")
    assert (place.host, place.name) == ("bucket", "rooms/state/x1")
