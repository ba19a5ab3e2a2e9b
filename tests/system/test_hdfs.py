"""Files of a real HDFS as objects: atomic, created only once, and errors are reported in time."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from file_feed import COUNTING_JOB, SENSORS
from hdfs_feed import HdfsFeed
from hdfs_server import HdfsServer
from job_in_session import JobInSession
from pyspark.sql import SparkSession

import penstock as ps
from penstock.checkpoints.stored_checkpoint import working_folder
from penstock.errors import AlreadyThereError, BindingError, ExternalSystemError, NotThereError
from penstock.objects import hdfs_client, hdfs_connections
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Patience, Place
from penstock.objects.objects import ObjectError, read_object
from penstock.snapshots.stores import open_store

# The servers take 11 CPU-seconds to start; tests/unit/objects tests the client with a model of HDFS that
# loses answers.
pytestmark = pytest.mark.chaos

WRITERS = 4


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


def folder_of(hdfs: HdfsServer, path: str, patience: Patience = IN_HASTE) -> ObjectFolder:
    return ObjectFolder(Place("hdfs", f"127.0.0.1:{hdfs.port}", path), {}, patience)


def test_a_file_is_there_whole_or_not_at_all(hdfs: HdfsServer) -> None:
    """It has its name, its size, any range of it, and appears in listings, even when empty; then it is removed."""
    files = folder_of(hdfs, "files/ü b, 50%")
    large = os.urandom(hdfs_client._BLOCK_BYTES + 3)
    files.put("a/large", io.BytesIO(large))
    files.put("a/large", io.BytesIO(large[::-1]))
    assert files.create("a/empty", b"")
    assert files.read("a/large") == large[::-1]
    assert files.read_range("a/large", 5, len(large)) == large[::-1][5:]
    assert files.find("a/empty") == b""
    assert (files.find("a/none"), files.holds("a/none"), files.holds("a/empty")) == (None, False, True)
    copied = io.BytesIO()
    files.copy("a/large", copied)
    assert copied.getvalue() == large[::-1]
    with pytest.raises(FileNotFoundError):
        files.copy("a/none", copied)
    assert {(one.name, one.size) for one in files.objects()} == {("a/large", len(large)), ("a/empty", 0)}
    assert sorted(files.names("a")) == ["empty", "large"]
    assert list(files.names("a", "empty")) == ["large"]
    assert (list(files.names("b")), files.folders(""), files.folders("b")) == ([], ["a"], [])
    files.remove(["a/large", "a/empty", "a/none"])
    assert list(files.objects()) == []
    # Nothing is left, not even a folder.
    assert [one.path for one in hdfs.client().list_status("/files")] == []


def test_of_several_writers_one_creates_a_file(hdfs: HdfsServer) -> None:
    names = [f"{number:010}" for number in range(5)]

    def write(writer: int) -> list[str]:
        files = folder_of(hdfs, "raced")
        return [name for name in names if files.create(name, b"%d" % writer)]

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(write, range(WRITERS)))
    assert sorted(name for found in won for name in found) == names
    files = folder_of(hdfs, "raced")
    for writer, found in enumerate(won):
        assert all(files.read(name) == b"%d" % writer for name in found)
    assert sorted(one.name for one in files.objects()) == names
    assert not files.create(names[0], b"late")


def test_what_a_writer_has_left_is_not_there_and_is_removed_when_it_is_old(hdfs: HdfsServer) -> None:
    files = folder_of(hdfs, "left")
    client = hdfs.client()
    day_ms = 24 * 3600 * 1000
    assert files.create("log/1", b"x")
    now_ms = client.get_file_info("/left/log/1").modification_time
    for name, age_ms in ((f".2.{'a' * 32}.tmp", 2 * day_ms), (f".3.{'b' * 32}.tmp", 0)):
        client.create(f"/left/log/{name}").close()
        client.set_times(f"/left/log/{name}", now_ms - age_ms, now_ms)
    assert list(files.names("log")) == ["1"]
    files.remove_unfinished()
    left = [Path(one.path).name for one in client.list_status("/left/log")]
    assert sorted(left) == [f".3.{'b' * 32}.tmp", "1"]


def test_a_snapshot_is_in_files(hdfs: HdfsServer) -> None:
    store = open_store(f"{hdfs.url}/snapshots/one")
    store.create("tables/a.arrow", b"rows")
    with pytest.raises(AlreadyThereError):
        store.create("tables/a.arrow", b"others")
    store.replace("manifest.json", b"{}")
    assert (store.read("tables/a.arrow"), store.size("manifest.json")) == (b"rows", 2)
    assert (store.exists("manifest.json"), store.exists("none")) == (True, False)
    assert store.open_input("tables/a.arrow").read() == b"rows"
    assert store.list("tables/") == ["tables/a.arrow"]
    store.delete("tables/a.arrow")
    with pytest.raises(NotThereError):
        store.read("tables/a.arrow")
    with pytest.raises(NotThereError):
        store.size("tables/a.arrow")


def test_a_command_may_name_a_file(hdfs: HdfsServer) -> None:
    folder_of(hdfs, "settings").put("limits.json", io.BytesIO(b'{"limit": 3}'))
    uri = f"{hdfs.url}/settings/limits.json"
    assert read_object(uri, 100) == b'{"limit": 3}'
    with pytest.raises(ObjectError, match="is larger than 5 bytes"):
        read_object(uri, 5)
    with pytest.raises(ObjectError, match=r"none' cannot be read: the file does not exist$"):
        read_object(f"{hdfs.url}/settings/none", 100)


def test_a_user_without_rights_is_told(hdfs: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    files = folder_of(hdfs, "secured")
    hdfs_connections.forget_client(files.place)
    try:
        with pytest.raises(
            BindingError, match=r"access is denied \(Permission denied: user=stranger, access=WRITE"
        ):
            files.create("a", b"x")
    finally:
        hdfs_connections.forget_client(files.place)


def test_servers_that_are_away_are_waited_for_or_told(hdfs: HdfsServer) -> None:
    """A NameNode is killed or suspended; a patient writer continues when it is back."""
    files = folder_of(hdfs, "away")
    assert files.create("a", b"x")
    hdfs.name_node.kill()
    begun = time.monotonic()
    with pytest.raises(
        ExternalSystemError, match=f"the NameNode 127.0.0.1:{hdfs.port} does not answer: connection"
    ):
        files.holds("a")
    assert time.monotonic() - begun < 10
    patient = folder_of(hdfs, "away", Patience(5_000, 60_000, 600_000, retries=60, retry_ms=60_000))
    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(patient.create, "b", b"y")
        hdfs.name_node.start()
        assert created.result()
    assert files.read("b") == b"y"


def test_a_job_whose_checkpoint_is_on_hdfs_goes_on_from_an_empty_disk(
    tmp_path: Path, spark: SparkSession, hdfs: HdfsServer
) -> None:
    """All state and positions are on HDFS, as are inputs and outputs."""
    feed = HdfsFeed(tmp_path, hdfs)
    for must_continue in (False, True):
        feed.write()
        settings = feed.settings(tmp_path, bounded=True, must_continue=must_continue)
        with JobInSession(spark, COUNTING_JOB, settings) as job:
            job.wait()
        shutil.rmtree(working_folder(feed.checkpoint))
    feed.assert_exactly_once()


def test_savepoints_and_dumps_are_on_hdfs(tmp_path: Path, spark: SparkSession, hdfs: HdfsServer) -> None:
    """They are taken from a running job, and a new job continues from the savepoint."""
    feed = HdfsFeed(tmp_path, hdfs)
    dump = f"{feed.checkpoint}.dump"
    feed.write()
    with JobInSession(spark, COUNTING_JOB, feed.settings(tmp_path)) as job:
        job.await_true(lambda: len(feed.rows()) == SENSORS)
        penstock("state", "dump", feed.checkpoint, "--to", dump, "--format=jsonl")
        penstock("savepoint", feed.checkpoint)
    shutil.rmtree(working_folder(feed.checkpoint))
    counted = 'SELECT count(*) AS keys, sum("count") AS total FROM state.counts'
    assert ps.query_snapshot(dump, counted).to_pylist() == [{"keys": SENSORS, "total": SENSORS}]
    (savepoint,) = json.loads(penstock("savepoint", feed.checkpoint, "--list", "--output=json"))
    assert savepoint["uri"].startswith(f"{feed.checkpoint}.savepoints/")
    feed.write()
    settings = feed.settings(tmp_path, checkpoint=f"{feed.checkpoint}.new", bounded=True)
    with JobInSession(
        spark, COUNTING_JOB, dataclasses.replace(settings, from_savepoint=savepoint["uri"])
    ) as job:
        job.wait()
    shutil.rmtree(working_folder(f"{feed.checkpoint}.new"))
    feed.assert_exactly_once()


def penstock(*arguments: str) -> str:
    """Return the output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
