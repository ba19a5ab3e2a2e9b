"""A Spark standalone cluster of real processes: a managed job runs on it, or is scaled on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from job_process import EXAMPLE, await_true, kill, processes_of
from rooms import Record, Rooms, by_sensor, fold, read_folder, write_file
from spark_cluster import WORKERS, bare_python, quick_jvm, spark_cluster

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
  readings: jsonl:{root}/readings?max_files_per_batch=1
  settings: jsonl:{root}/settings?max_files_per_batch=1
  heaters: jsonl:{root}/heaters
parallelism: {parallelism}
master: {master}
restart: none
scaling: {scaling}
spark:
  spark.cores.max: "{cores}"
  spark.executor.extraJavaOptions: "{options}"
  spark.executor.extraClassPath: "{class_path}"
"""


@dataclass(frozen=True)
class Form:
    """The size of a cluster, and whether its job is scaled out."""

    workers: int
    is_scaled: bool


class Managed:
    """The temperature-control job on a cluster, with its own manager.

    It starts with one task per worker, or with fewer tasks than its policy allows.
    """

    def __init__(
        self, root: Path, master: str, python: Path, workers: tuple[str, ...], *, is_scaled: bool
    ) -> None:
        self.is_scaled = is_scaled
        self.workers = workers
        self._root = root
        definitions = root / "definitions"
        shutil.copytree(EXAMPLE.parent, definitions)
        options, class_path = quick_jvm()
        (definitions / "rooms.yaml").write_text(
            DEFINITION.format(
                root=root,
                master=master,
                options=options,
                class_path=class_path,
                parallelism=1 if is_scaled else len(workers),
                cores=len(workers),
                scaling="{min_tasks: 2}" if is_scaled else "null",
            )
        )
        self.home = ServerDirectory(root / "home")
        self._tag = uuid.uuid4().hex
        self._store = Store.open(sqlite_url(self.home.store))
        self.service = JobService(self._store, Catalog([definitions]), self.home)
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {"PENSTOCK_TEST_RUN": self._tag, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        program = Path(__file__).with_name("manager_program.py")
        with (root / "manager.log").open("wb") as log:
            self._manager = subprocess.Popen(
                [sys.executable, str(program), str(self.home.root), str(definitions)],
                stdout=log,
                stderr=log,
                env={**inherited, **own, "SPARK_LOCAL_DIRS": str(root / "spark")},
                start_new_session=True,
            )

    def log(self) -> str:
        outputs = "".join(path.read_text()[-2000:] for path in self.home.root.rglob("output.log"))
        events = [(event.what, event.detail) for event in self._store.events()]
        return f"{(self._root / 'manager.log').read_text()[-2000:]}\n{events}\n{outputs}"

    def close(self) -> None:
        self._manager.kill()
        self._manager.wait()
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)
        self._store.close()


@pytest.fixture
def managed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Managed]:
    form: Form = request.param
    workers = WORKERS[: form.workers]
    with spark_cluster(tmp_path, workers) as master:
        made = Managed(tmp_path, master, bare_python(tmp_path), workers, is_scaled=form.is_scaled)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(
    "managed",
    [
        pytest.param(Form(1, is_scaled=False), id="one worker"),
        pytest.param(Form(2, is_scaled=False), marks=pytest.mark.chaos, id="two workers"),
        pytest.param(Form(2, is_scaled=True), marks=pytest.mark.chaos, id="scaled"),
    ],
    indirect=True,
)
def test_a_managed_job_runs_on_a_cluster(managed: Managed, tmp_path: Path) -> None:
    """It uses all workers, to which its policy may scale it out; its output equals the reference.

    Neither penstock nor the job is installed on the workers.
    """
    rooms = Rooms(11)
    batches: list[tuple[list[Record], list[Record]]] = []

    def send(settings: list[Record]) -> None:
        readings: list[Record] = [reading for _ in range(50) for reading in rooms.readings()]
        # Settings first: the model applies them before the readings of their batch. The next batch is sent once
        # these readings are processed, since its settings would take effect before readings that still wait.
        write_file(tmp_path / "settings", f"{len(batches)}.jsonl", settings)
        write_file(tmp_path / "readings", f"{len(batches)}.jsonl", readings)
        batches.append((settings, readings))

    def await_all() -> None:
        expected = sum(map(len, fold(batches).values()))
        await_true(lambda: len(read_folder(tmp_path / "heaters")) >= expected, managed.log)

    (tmp_path / "heaters").mkdir()
    send(rooms.first_settings())
    submitted = managed.service.submit(Submission(definition="rooms"), "ann").result
    assert submitted is not None
    job_id: str = submitted["job"]
    await_all()
    if managed.is_scaled:
        check_is_scaled(managed, job_id)
    for _ in range(2):
        send(rooms.settings())
        await_all()

    assert by_sensor(read_folder(tmp_path / "heaters")) == fold(batches)
    checkpoint = managed.service.checkpoint(job_id)
    if managed.is_scaled:
        await_true(lambda: len({f.parallelism for f in read_batch_metrics(checkpoint)}) == 2, managed.log)
    newest = newest_batch_metrics(checkpoint)
    assert newest is not None
    # Spark reports two cores for a cluster with a single one.
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
    assert managed.service.get(job_id).run == 1
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
