"""Azure Blob Storage, emulated by Azurite: a checkpoint, its outputs and savepoints, and the store of servers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from azure_server import AzureServer
from file_feed import COUNTING_JOB, SENSORS, FileFeed
from job_process import run_arguments
from obstore.store import AzureStore
from reliability import noting
from sink_kills import BUSY_S, finish
from stored_homes import lose_disk, lose_machines

import penstock as ps
from penstock.errors import PlaceMissingError
from penstock.jobs.settings import RunSettings
from penstock.objects.object_folder import IN_HASTE, ObjectFolder
from penstock.objects.object_stores import Place
from penstock.savepoints.savepoints import list_savepoints
from penstock.server.store.store import Store

HOME = "az://rooms/jobs/a b, 50%25"
OUTPUT = "az://rooms/seen"


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with (
        pytest.MonkeyPatch.context() as patch,
        AzureServer(tmp_path_factory.mktemp("azure")) as server,
    ):
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.make_container("rooms")
        yield server


class AzureFeed(FileFeed):
    """Readings in files, and the job's output on Azure."""

    def rows(self) -> list[tuple[int, int]]:
        store = AzureStore("rooms", client_options={"allow_http": True})
        found = []
        for uri in ps.committed_objects(OUTPUT):
            content = bytes(obstore.get(store, uri.removeprefix("az://rooms/")).bytes())
            found += [(row["sensor"], row["count"]) for row in map(json.loads, content.splitlines())]
        return found


@pytest.mark.chaos
def test_a_container_does_what_a_checkpoint_needs(azure: AzureServer) -> None:
    """Objects are created only once, read in ranges and listed; removing a missing object is no error."""
    objects = ObjectFolder(Place("az", "rooms", "a b/50%"), {}, IN_HASTE)
    assert [objects.create("log/1", content) for content in (b"first", b"second")] == [True, False]
    assert (objects.find("log/1"), objects.find("log/2"), objects.size("log/1")) == (b"first", None, 5)
    assert objects.read_range("log/1", 1, 3) == b"irs"
    objects.create("log/2", b"")
    assert list(objects.names("log", "1")) == ["2"]
    objects.remove(["gone", "log/1", "gone too"])
    assert list(objects.names("log")) == ["2"]
    with pytest.raises(PlaceMissingError, match="the bucket 'nowhere' does not exist"):
        ObjectFolder(Place("az", "nowhere", "x"), {}, IN_HASTE).find("any")


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_kills_of_a_job_whose_home_is_on_azure(azure: AzureServer, tmp_path: Path) -> None:
    """Each process is killed, and then its machine's disk is lost; a savepoint is taken on a machine without
    files of the job.
    """
    seed = 40
    feed = AzureFeed(tmp_path)
    feed.write()
    bindings = {"readings": feed.binding, "seen": f"{OUTPUT}?format=jsonl"}
    settings = RunSettings(bindings=bindings, checkpoint=HOME, parallelism=2)
    arguments = run_arguments(COUNTING_JOB, settings)
    try:
        with noting("checkpoints on Azure", "-k whose_home_is_on_azure", str(seed)) as injected:
            with feed.feeding():
                lose_machines(
                    HOME,
                    arguments,
                    tmp_path,
                    ("driver", "JVM", "worker", "driver"),
                    random.Random(seed),
                    lambda: len(feed.rows()),
                    lambda victim: injected.add(f"{victim}, and then its machine's disk (Azure)"),
                    BUSY_S,
                )
            finish(arguments, tmp_path, lambda: len(feed.rows()), feed.files * SENSORS, BUSY_S)
            lose_disk(HOME)
            assert sorted(feed.rows()) == sorted(feed.expected.elements())
        to = "az://rooms/savepoints"
        command = [sys.executable, "-m", "penstock.cli", "savepoint", HOME, "--to", to]
        taken = subprocess.run(command, capture_output=True, text=True, timeout=BUSY_S, check=False)
        assert taken.returncode == 0, taken.stderr
        ((uri, _),) = list_savepoints(to)
        counted = 'SELECT count(*) AS keys, min("count") AS least, max("count") AS most FROM state.counts'
        assert ps.query_snapshot(uri, counted).to_pylist() == [
            {"keys": SENSORS, "least": feed.files, "most": feed.files}
        ]
    finally:
        lose_disk(HOME)


@pytest.mark.chaos
def test_servers_that_share_a_container_have_one_leader(azure: AzureServer) -> None:
    stores = [Store.open("az://rooms/server") for _ in range(2)]
    assert [store.lead(f"{number}", 60_000) for number, store in enumerate(stores)] == [1, None]
    for number in range(4):
        stores[number % 2].add_event(None, f"{number}")
    assert [event.what for event in stores[0].events()] == ["0", "1", "2", "3"]
    assert stores[0].events() == stores[1].events()
    for store in stores:
        store.close()
