"""The place of the state beside a checkpoint's log: a new one until something is committed, then the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from modelled_store import ModelledStore

from penstock.checkpoints.spark_checkpoint import Expected, inspect
from penstock.checkpoints.state_place import StatePlace, place_state, refuse_elsewhere, state_place
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.errors import CheckpointError

SHOWN = "s3://bucket/rooms"


def placed(folder: Path, *, is_local: bool = False) -> tuple[StatePlace | None, StatePlace | None]:
    return place_state(folder, SHOWN, is_local=is_local)


def commit(folder: Path, number: int = 0, ids: tuple[str, ...] = ("a", "b")) -> None:
    """What Spark has written when a micro-batch with a state of two partitions is committed."""
    for log, lines in (("offsets", ["v1", "{}", "{}"]), ("commits", ["v2", _ids(ids)])):
        (folder / log).mkdir(exist_ok=True)
        (folder / log / str(number)).write_text("\n".join(lines))
    (folder / "metadata").write_text('{"id":"x"}')


def _ids(ids: tuple[str, ...]) -> str:
    return json.dumps({"stateUniqueIds": {"0": [[one] for one in ids]}})


def test_state_stays_in_the_folder_where_all_tasks_are_on_this_machine(tmp_path: Path) -> None:
    assert placed(tmp_path, is_local=True) == (None, None)
    assert state_place(tmp_path) is None
    refuse_elsewhere(tmp_path, "A dump")


def test_each_run_begins_in_a_place_of_its_own_until_one_has_committed(tmp_path: Path) -> None:
    first, before = placed(tmp_path)
    assert first is not None
    assert before is None
    second, before = placed(tmp_path)
    assert before == first
    assert second not in (None, first)
    commit(tmp_path)
    for is_local in (False, True):
        assert placed(tmp_path, is_local=is_local) == (second, None)
    with pytest.raises(CheckpointError, match="A dump needs the state of the job in the folder"):
        refuse_elsewhere(tmp_path, "A dump")


@pytest.mark.parametrize("begun", ["commit", "seed"])
def test_a_job_that_has_run_on_one_machine_cannot_go_on_on_others(tmp_path: Path, begun: str) -> None:
    if begun == "seed":
        (tmp_path / "seed").mkdir()
    else:
        commit(tmp_path)
    with pytest.raises(CheckpointError, match=r"s3://bucket/rooms on one machine.*--master 'local\[\*\]'"):
        placed(tmp_path)
    assert state_place(tmp_path) is None


def test_a_seed_in_the_folder_keeps_the_tasks_on_this_machine(tmp_path: Path) -> None:
    """As after a start from a savepoint with local[*], where a cluster had begun before and committed nothing."""
    placed(tmp_path)
    (tmp_path / "seed").mkdir()
    place = state_place(tmp_path)
    assert placed(tmp_path, is_local=True) == (place, None)
    with pytest.raises(CheckpointError, match="on one machine"):
        placed(tmp_path)


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


def test_a_place_that_no_longer_counts_is_removed_if_the_store_lets_us(tmp_path: Path) -> None:
    store = ModelledStore()
    stored = StoredCheckpoint(store, SHOWN, tmp_path)
    store.objects |= {"state/x1/0/0/4_a.changelog": b"", "state/x2/0/0/4_a.zip": b""}
    stored.remove_state(StatePlace("x1"))
    assert list(store.objects) == ["state/x2/0/0/4_a.zip"]
    failing = StoredCheckpoint(ModelledStore(lambda: "fails"), SHOWN, tmp_path)
    failing.remove_state(StatePlace("x1"))


def test_the_state_is_below_the_prefix_of_the_checkpoint(tmp_path: Path) -> None:
    place = StoredCheckpoint(ModelledStore(), SHOWN, tmp_path).place_of("state/x1")
    assert (place.host, place.name) == ("bucket", "rooms/state/x1")
