"""A job on a cluster with its checkpoint on an object store: places that workers cannot reach are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modelled_store import ModelledStore

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import ObjectsBinding
from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.state_place import place_state, state_place
from penstock.checkpoints.stored_checkpoint import StoredCheckpoint
from penstock.errors import BindingError, CheckpointError
from penstock.jobs.cluster_state import check_reach, mount_state
from penstock.jobs.compile import CompiledJob, compile_job, parse_bindings
from penstock.jobs.settings import RunSettings
from penstock.runtime.packed_rows import DEAD_LETTERS
from penstock.sources.carried_files import CarriedFiles

MASTER = "spark://host:7077"
REACHED = {"readings": "rate:10", "out": "s3://bucket/out?format=jsonl"}


class Counts(ps.ProcessFunction):
    """Counts readings."""

    count = ps.ValueState(int)

    def process_record(self, reading: Any, ctx: ps.Context) -> Iterator[Any]:
        yield reading


def job() -> ps.Job:
    made = ps.Job("job", key_groups=3)
    readings = made.data_stream("readings", schema="value BIGINT").key_by("value")
    readings.process("counts", Counts(), output="value BIGINT").sink_to("out")
    return made


def checkpoint(folder: Path, shown: str = "s3://bucket/rooms") -> Checkpoint:
    return Checkpoint(folder, StoredCheckpoint(ModelledStore(), shown, folder))


def bound(folder: Path, master: str = MASTER, **bindings: str) -> CompiledJob:
    made = checkpoint(folder)
    place_state(folder, "s3://bucket/rooms", is_local=False)
    return compile_job(job(), RunSettings(bindings={**REACHED, **bindings}, master=master), made)


def test_commands_travel_with_their_plan_and_dead_letters_go_to_the_store(tmp_path: Path) -> None:
    made = bound(tmp_path)
    assert isinstance(made.sources[1].log, CarriedFiles)
    (tmp_path / "mine").mkdir()
    given = bound(tmp_path, commands=f"jsonl:{tmp_path / 'mine'}")
    assert isinstance(given.sources[1].log, CarriedFiles)
    assert made.dead_letters_at == "s3://bucket/rooms/dead-letters?format=jsonl"


def test_dead_letters_are_beside_the_state_whatever_the_prefix_has(tmp_path: Path) -> None:
    shown = "s3://bucket/a b/50%25?#"
    place_state(tmp_path, shown, is_local=False)
    made = compile_job(job(), RunSettings(bindings=REACHED, master=MASTER), checkpoint(tmp_path, shown))
    assert made.dead_letters_at == "s3://bucket/a%20b/50%2525%3F%23/dead-letters?format=jsonl"
    found = parse_bindings(job(), REACHED, checkpoint(tmp_path, shown), apart=True)[DEAD_LETTERS]
    assert isinstance(found, ObjectsBinding)
    assert found.prefix == "a b/50%25?#/dead-letters"


@pytest.mark.parametrize("name", ["readings", "out", "dead-letters"])
def test_folders_are_refused(tmp_path: Path, name: str) -> None:
    """Folders are allowed where all tasks run on the driver's machine."""
    (tmp_path / "folder").mkdir()
    uri = f"jsonl:{tmp_path / 'folder'}"
    with pytest.raises(
        BindingError, match=rf"'{name}' is bound to 'jsonl:.*, which the workers of spark://host:7077"
    ) as refused:
        bound(tmp_path, **{name: uri})
    assert "Bind it to Kafka, to an object store" in str(refused.value)
    bound(tmp_path, "local[2]", **{name: uri})


@pytest.mark.parametrize(
    ("uri", "is_reached"),
    [
        ("iceberg:a.b?catalog=https://host/catalog", True),
        ("iceberg:a.b?catalog=postgresql://me@host:5432/tables&warehouse=s3://bucket/tables", True),
        ("iceberg:a.b?catalog=postgresql://me@host:5432/tables&warehouse=/data/tables", False),
        ("iceberg:a.b?catalog=/data/tables.db&warehouse=s3://bucket/tables", False),
        ("delta:/data/table", False),
        ("spark:json?path=/data/json", False),
    ],
)
def test_tables_in_folders_are_refused(uri: str, is_reached: bool) -> None:
    """A catalog and a store that the workers reach are allowed."""
    bindings = {"out": parse_binding("out", uri, "sink")}
    if is_reached:
        check_reach(bindings, "s3://bucket/rooms", MASTER)
        return
    with pytest.raises(BindingError, match="a folder, which the workers of spark://host:7077 need not share"):
        check_reach(bindings, "s3://bucket/rooms", MASTER)


def test_commands_of_a_table_do_not_travel() -> None:
    bindings = {"commands": parse_binding("commands", "delta:/data/table", "control")}
    with pytest.raises(BindingError, match="'commands' is bound to 'delta:/data/table', a folder"):
        check_reach(bindings, "s3://bucket/rooms", MASTER)


def test_only_stores_of_which_tasks_have_a_client_have_the_state_of_tasks(tmp_path: Path) -> None:
    assert mount_state(Checkpoint(tmp_path), MASTER) is None
    assert mount_state(checkpoint(tmp_path), "local[*]") is None
    mount = mount_state(checkpoint(tmp_path), MASTER)
    place = state_place(tmp_path)
    assert mount is not None
    assert place is not None
    assert mount.location == f"viewfs://penstock-{place.id}/"
    assert mount.target.name == f"rooms/state/{place.id}"
    with pytest.raises(CheckpointError, match=r"and gs://bucket/rooms is not\. Use s3://"):
        mount_state(checkpoint(tmp_path, "gs://bucket/rooms"), MASTER)


@pytest.mark.parametrize("bucket", ["my_rooms", "rooms.2026", "-rooms"])
def test_a_bucket_that_is_no_host_is_refused(tmp_path: Path, bucket: str) -> None:
    """Java cannot parse such a bucket from the address."""
    with pytest.raises(CheckpointError, match=f"takes no bucket with the name '{bucket}'"):
        mount_state(checkpoint(tmp_path, f"s3://{bucket}/rooms"), MASTER)


@pytest.mark.parametrize("bucket", ["rooms-2026", "2026", "rooms.example.x1"])
def test_a_bucket_that_is_a_host_is_taken(tmp_path: Path, bucket: str) -> None:
    mount = mount_state(checkpoint(tmp_path, f"s3://{bucket}/rooms"), MASTER)
    assert mount is not None
    assert mount.target.host == bucket


def test_a_folder_of_hdfs_has_the_state_of_tasks(tmp_path: Path) -> None:
    mount = mount_state(checkpoint(tmp_path, "hdfs://name_node:8020/rooms"), MASTER)
    assert mount is not None
    assert (mount.target.family, mount.target.host) == ("hdfs", "name_node:8020")
