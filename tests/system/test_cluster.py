"""A Spark standalone cluster, a master and its workers as real processes: a managed job runs there, or is scaled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from job_process import EXAMPLE, await_true, kill, processes_of
from own_disk import can_have_own_disk
from rooms import Record, Rooms, by_sensor, fold, read_folder, write_file
from s3_server import S3Server
from spark_cluster import WORKERS, SparkCluster, bare_python, quick_jvm

import penstock as ps
from penstock.metrics.batch_metrics import newest_batch_metrics, read_batch_metrics
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.manager.scaling_state import AUTOSCALER
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService
from penstock.server.store.engine import sqlite_url
from penstock.server.store.store import Store

DEFINITION = """
job: job.py
bindings:
  readings: {readings}
  settings: {settings}
  heaters: {heaters}
parallelism: {parallelism}
master: {master}
restart: {restart}
scaling: {scaling}
spark:
  spark.cores.max: "{cores}"
  spark.executor.extraJavaOptions: "{options}"
  spark.executor.extraClassPath: "{class_path}"
"""


@dataclass(frozen=True)
class Form:
    """How large a cluster is, whether its job is scaled out, and whether its machines share nothing but a store."""

    workers: int
    is_scaled: bool = False
    is_apart: bool = False


class Shared:
    """What the job reads and writes, in a folder that all machines share."""

    checkpoints: str | None = None

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "heaters").mkdir()

    def bindings(self) -> dict[str, str]:
        inputs = {
            name: f"jsonl:{self._root}/{name}?max_files_per_batch=1" for name in ("readings", "settings")
        }
        return {**inputs, "heaters": f"jsonl:{self._root}/heaters"}

    def write(self, stream: str, name: str, records: list[Record]) -> None:
        write_file(self._root / stream, name, records)

    def heaters(self) -> list[Record]:
        return read_folder(self._root / "heaters")


class InStore(Shared):
    """The same on a server of S3."""

    checkpoints = "s3://rooms/server"

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._read: dict[str, list[Record]] = {}
        server.put("rooms", "there", b"")

    def bindings(self) -> dict[str, str]:
        return {name: f"s3://rooms/{name}?format=jsonl" for name in ("readings", "settings", "heaters")}

    def write(self, stream: str, name: str, records: list[Record]) -> None:
        self._server.put(
            "rooms", f"{stream}/{name}", "".join(map("{}\n".format, map(json.dumps, records))).encode()
        )

    def heaters(self) -> list[Record]:
        # Whoever waits for them asks all the time, and the server has more to do.
        time.sleep(0.3)
        for uri in ps.committed_objects("s3://rooms/heaters"):
            if uri not in self._read:
                self._read[uri] = list(map(json.loads, self._server.get(uri).splitlines()))
        return [record for records in self._read.values() for record in records]


class Managed:
    """The temperature-control job on a cluster, with a manager of its own.

    It starts with a task for each worker, or with one, which its policy does not allow.
    """

    def __init__(self, root: Path, master: str, shared: Shared, form: Form) -> None:
        self.form = form
        self.workers = workers = WORKERS[: form.workers]
        self.shared = shared
        # Of the machine of the manager and its drivers.
        self.disk = root / "disk"
        self.disk.mkdir(exist_ok=True)
        self._root = root
        definitions = root / "definitions"
        shutil.copytree(EXAMPLE.parent, definitions)
        options, class_path = quick_jvm()
        (definitions / "rooms.yaml").write_text(
            DEFINITION.format(
                **shared.bindings(),
                master=master,
                restart="fixed-delay:attempts=9,delay=0s" if form.is_apart else "none",
                options=options,
                class_path=class_path,
                parallelism=1 if form.is_scaled else len(workers),
                cores=len(workers),
                scaling="{min_tasks: 2}" if form.is_scaled else "null",
            )
        )
        self.home = ServerDirectory(root / "home", shared.checkpoints)
        self._tag = uuid.uuid4().hex
        self._store = Store.open(sqlite_url(self.home.store))
        self.service = JobService(self._store, Catalog([definitions]), self.home)
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {
            "PENSTOCK_TEST_RUN": self._tag,
            "PYSPARK_PYTHON": str(bare_python(root)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.disk),
        }
        program = Path(__file__).with_name("manager_program.py")
        places = [str(self.home.root), str(definitions)]
        if shared.checkpoints is not None:
            places.append(shared.checkpoints)
        with (root / "manager.log").open("wb") as log:
            self._manager = subprocess.Popen(
                [sys.executable, str(program), *places],
                stdout=log,
                stderr=log,
                env={**inherited, **own, "SPARK_LOCAL_DIRS": str(root / "spark")},
                start_new_session=True,
            )

    def log(self) -> str:
        outputs = "".join(path.read_text()[-2000:] for path in self.home.root.rglob("output.log"))
        events = [(event.what, event.detail) for event in self._store.events()]
        return f"{(self._root / 'manager.log').read_text()[-2000:]}\n{events}\n{outputs}"

    def checkpoint(self, job_id: str) -> Path:
        """The folder in which the driver works."""
        if self.form.is_apart:
            (found,) = self.disk.glob("penstock-checkpoint-*")
            return found
        return self.service.checkpoint(job_id)

    def lose_driver(self) -> None:
        """The driver, with the disk of its machine."""
        for pid, command in processes_of(self._tag).items():
            if "penstock.server.runs.driver" in command:
                kill(pid, signal.SIGKILL)
        for folder in self.disk.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._manager.kill()
        self._manager.wait()
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)
        self._store.close()


@pytest.fixture
def managed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Managed]:
    form: Form = request.param
    disk = None
    if form.is_apart:
        if not can_have_own_disk():
            pytest.skip("this system lets no process have mounts of its own")
        server: S3Server = request.getfixturevalue("s3")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        disk = tmp_path / "disk"
        disk.mkdir()
    shared = InStore(server) if form.is_apart else Shared(tmp_path)
    with SparkCluster(tmp_path, WORKERS[: form.workers], disk=disk) as cluster:
        made = Managed(tmp_path, cluster.url, shared, form)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(
    "managed",
    [
        pytest.param(Form(1, is_apart=True), id="one worker that shares only a store"),
        pytest.param(Form(2), marks=pytest.mark.chaos, id="two workers"),
        pytest.param(Form(2, is_scaled=True), marks=pytest.mark.chaos, id="scaled"),
    ],
    indirect=True,
)
def test_a_managed_job_runs_on_a_cluster(managed: Managed, tmp_path: Path) -> None:
    """On all workers, to which its policy may scale it out; what it emits is what the reference says.

    Nothing of penstock or the job is installed on the workers. Where machines share only a store, the driver is killed,
    and its machine's disk is lost.
    """
    rooms = Rooms(11)
    batches: list[tuple[list[Record], list[Record]]] = []

    def send(settings: list[Record]) -> None:
        readings: list[Record] = [reading for _ in range(50) for reading in rooms.readings()]
        # Settings first: the fold has them before the readings, whichever micro-batch they come in.
        managed.shared.write("settings", f"{len(batches)}.jsonl", settings)
        managed.shared.write("readings", f"{len(batches)}.jsonl", readings)
        batches.append((settings, readings))

    def await_all() -> None:
        expected = sum(map(len, fold(batches).values()))
        await_true(lambda: len(managed.shared.heaters()) >= expected, managed.log)

    send(rooms.first_settings())
    submitted = managed.service.submit(Submission(definition="rooms"), "ann").result
    assert submitted is not None
    job_id: str = submitted["job"]
    await_all()
    if managed.form.is_scaled:
        check_is_scaled(managed, job_id)
    run = managed.service.get(job_id).run
    if managed.form.is_apart:
        managed.lose_driver()
    for _ in range(2):
        send(rooms.settings())
    await_all()

    assert by_sensor(managed.shared.heaters()) == fold(batches)
    checkpoint = managed.checkpoint(job_id)
    if managed.form.is_scaled:
        await_true(lambda: len({f.parallelism for f in read_batch_metrics(checkpoint)}) == 2, managed.log)
    newest = newest_batch_metrics(checkpoint)
    assert newest is not None
    # Spark says two of a cluster with a single core.
    assert (newest.parallelism, newest.cores) == (len(managed.workers), 2)
    # All workers took part, and none can import penstock by itself.
    for worker in managed.workers:
        assert list((tmp_path / worker).glob("app-*/*/penstock-code-*.zip")), f"{worker} got no code"
    found = subprocess.run(
        [str(tmp_path / "bare-python"), "-c", "import pyarrow, penstock"],
        env={"PENSTOCK_TEST_ON_WORKER": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'penstock'" in found.stderr
    assert (managed.service.get(job_id).run > run) == managed.form.is_apart
    managed.service.cancel(job_id, "ann")
    await_true(lambda: managed.service.get(job_id).status is JobStatus.CANCELED, managed.log)


def check_is_scaled(managed: Managed, job_id: str) -> None:
    """Wait until the policy has scaled the job out."""
    await_true(
        lambda: any(event.what == "rescale is done" for event in managed.service.events(job_id)), managed.log
    )
    (asked,) = (e for e in managed.service.events(job_id) if e.what == "asked for: rescale")
    (done,) = (e for e in managed.service.events(job_id) if e.what == "rescale is done")
    assert asked.who == AUTOSCALER
    assert asked.detail["cause"] == "outside-limits"
    assert (done.detail["before"], done.detail["after"]) == (1, 2)
    assert 0 < done.detail["downtime_s"] < 60
