"""A standalone cluster whose machines share only a store, S3 or HDFS: a job runs there, and survives kills."""

from __future__ import annotations

import base64
import json
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_feed import ClusterFeed
from file_feed import SENSORS
from job_process import await_true, kill
from machines_apart import COUNTED, IN_REAL_TIME, PATIENCE_S, Apart, Site, Supervisor, open_site
from reliability import noting
from rooms import write_file
from served import Served
from sink_kills import await_progress, kill_process

import penstock as ps

SUITE = "clusters that share a store"
ROUNDS = 6
WORKING = ("executor", "worker of Spark")
DRIVING = ("driver", "JVM")


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site"), request.param) as opened:
        yield opened


@pytest.fixture
def apart(tmp_path: Path, site: Site) -> Apart:
    return Apart(tmp_path, site)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_job_on_machines_that_share_only_a_store_goes_on_from_an_empty_disk(apart: Apart) -> None:
    """State, positions and dead letters are in the store; tasks get commands from the driver's folder.

    The job runs in both modes, switching from one to the other and back.
    """
    feed = apart.feed
    broken = 0
    for more in ((), IN_REAL_TIME, IN_REAL_TIME, ()):
        feed.write()
        with apart.job(*more) as job:
            apart.await_all(job)
            broken += 1
            write_file(apart.working_folder(job) / "commands", f"broken-{broken}.jsonl", ["no command"])
            await_true(lambda: len(feed.dead_letters()) == broken, lambda: job.err, PATIENCE_S)  # noqa: B023
            apart.stop(job)
    feed.assert_exactly_once()
    for letter in feed.dead_letters():
        assert (letter["stream"], base64.b64decode(letter["raw"])) == ("commands", b"no command\n")


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_job_of_a_cluster_goes_on_with_all_tasks_on_one_machine_and_back(apart: Apart) -> None:
    """Its state stays in the store, where the tasks of `local[2]` also read and write it."""
    feed = apart.feed
    for more in ((), ("--master=local[2]",), ()):
        feed.write()
        with apart.job(*more) as job:
            apart.await_all(job)
            apart.stop(job)
    feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("more", [(), IN_REAL_TIME], ids=["micro-batches", "real time"])
def test_a_zombie_driver_of_a_cluster_whose_state_is_on_a_store_commits_nothing(
    apart: Apart, more: tuple[str, ...]
) -> None:
    """A driver is suspended while its executors continue; another one takes over, and then the first one
    resumes.
    """
    feed = apart.feed
    with noting(SUITE, "-k zombie_driver_of_a_cluster") as injected:
        with apart.job(*more) as zombie:
            with feed.feeding():
                await_progress(zombie, lambda: len(feed.rows()), PATIENCE_S)
            everybody = [zombie.process.pid, *zombie.family()]
            injected.add(apart.fault("driver, asleep while another took over", more))
            for pid in everybody:
                kill(pid, signal.SIGSTOP)
            with apart.job(*more) as other:
                apart.await_all(other)
                apart.stop(other)
            feed.assert_exactly_once()
            done = feed.expected
            state = feed.state()
            feed.write()
            for pid in everybody:
                kill(pid, signal.SIGCONT)
            result = zombie.wait(PATIENCE_S)
        assert result.code == 2, result.err
        assert f"has taken over the checkpoint {feed.checkpoint}." in result.err
        assert sorted(feed.rows()) == sorted(done.elements())
        # It may have written more, but has overwritten no current state.
        assert state.items() <= feed.state().items()
        with apart.job() as job:
            apart.await_all(job)
            apart.stop(job)
        feed.assert_exactly_once()


@pytest.mark.chaos
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("more", [(), IN_REAL_TIME], ids=["micro-batches", "real time"])
def test_kills_of_a_cluster_whose_state_is_on_a_store(apart: Apart, more: tuple[str, ...]) -> None:
    """Thirty kills under load: the server, an executor, the server, a worker, and then the driver with its
    machine's disk.
    """
    seed = 17
    chance = random.Random(seed)
    feed = apart.feed
    with (
        noting(SUITE, "-k kills_of_a_cluster_whose_state", str(seed)) as injected,
        Supervisor(apart, more) as runs,
    ):
        with feed.feeding():
            for number in range(ROUNDS):
                for victim in WORKING:
                    runs.await_progress()
                    injected.add(apart.fault(apart.store, more))
                    apart.server.kill()
                    time.sleep(chance.uniform(0, 3))
                    apart.server.start()
                    runs.await_progress()
                    time.sleep(chance.uniform(0, 2))
                    injected.add(apart.fault(victim, more))
                    apart.kill_one(victim, chance)
                runs.await_progress()
                time.sleep(chance.uniform(0, 2))
                victim = DRIVING[number % len(DRIVING)]
                injected.add(apart.fault(f"{victim}, with its machine's disk", more))
                kill_process(victim, runs.job)
        feed.write()
        runs.await_progress()
        apart.await_all(runs.job)
        apart.stop(runs.job)
        feed.assert_exactly_once()
    # Six drivers were killed; more runs may have ended for another reason, such as a busy machine.
    assert runs.started <= 10


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_state_that_is_only_in_the_store_is_read_and_rewritten(apart: Apart) -> None:
    """Covered are queries here and elsewhere, a dump, rescaling, stops with savepoints, changed states, and
    another job.
    """
    feed, home = apart.feed, apart.feed.checkpoint
    feed.write()
    with apart.job() as job:
        apart.await_all(job)
        assert apart.counts(home, job) == (SENSORS, 1, 1)
        to = str(apart.folder / "dump")
        apart.done(job, "state", "dump", home, "--to", to, "--format=jsonl")
        assert ps.query_snapshot(to, COUNTED).to_pylist() == [{"keys": SENSORS, "least": 1, "most": 1}]
        apart.done(job, "rescale", home, "--parallelism=3")
        feed.write()
        apart.await_all(job)
        refused = apart.penstock(None, "stop", home)
        assert (refused.code, "No run on this machine uses" in refused.err) == (2, True)
        refused = apart.penstock(job, "stop", home, "--savepoint-path", to)
        assert (refused.code, "need not reach the folder" in refused.err) == (2, True)
        apart.done(job, "stop", home, "--savepoint")
        assert job.wait(PATIENCE_S).code == 0, job.err
    # This process acts as a machine without files of the job.
    assert apart.counts(home) == (SENSORS, 2, 2)
    feed.write()
    with apart.job(program=apart.changed('job = ps.Job("recorded")')) as job:
        apart.await_all(job)
        assert "The states of the checkpoint were rewritten, since its states have changed." in job.err
        apart.done(job, "savepoint", home)
        apart.stop(job)
    _, newest = json.loads(apart.penstock(None, "savepoint", home, "--list", "--output=json").out)
    feed.write()
    new, other = f"{home}.new", apart.changed('job = ps.Job("recorded", key_groups=7)')
    with apart.job(f"--checkpoint={new}", f"--from-savepoint={newest['uri']}", program=other) as job:
        apart.await_all(job)
        apart.stop(job)
    feed.assert_exactly_once()
    assert apart.counts(new, state="total") == (SENSORS, 4, 4)


DEFINITION = """
job: recorded_job.py
master: {master}
parallelism: 2
restart: fixed-delay:attempts=99,delay=0s
bindings:
{bindings}
spark:
{spark}
"""


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_server_manages_a_job_whose_machines_share_only_a_store(apart: Apart) -> None:
    """It shows and rescales the job, takes savepoints, and continues it after everything on its machine
    except the home is lost.
    """
    feed = apart.feed
    settings = feed.settings(apart.folder)
    definition = DEFINITION.format(
        master=apart.cluster.url,
        bindings="".join(f"  {name}: {json.dumps(uri)}\n" for name, uri in settings.bindings.items()),
        spark="".join(f"  {name}: {json.dumps(value)}\n" for name, value in apart.spark.items()),
    )
    shared = f"{feed.checkpoint}/shared"
    environment = {"TMPDIR": str(apart.disk), "SPARK_LOCAL_IP": "127.0.0.1"}
    served = Served(
        apart.folder, "../integration/recorded_job.py", definition, environment, more=["--shared", shared]
    )
    on = ("--home", str(served.home), "--output=json")
    try:
        feed.write()
        job = served.client.post("/v1/jobs", json={"definition": "recorded"}).raise_for_status().json()["job"]
        await_rows(feed, served)
        assert apart.counts(job, more=on[:2]) == (SENSORS, 1, 1)
        get = ("state", "get", job, "--step=counts", "--key=5", *on)
        await_true(lambda: '"count":1' in apart.penstock(None, *get).out, served.log, PATIENCE_S)
        rescaled = apart.penstock(None, "rescale", job, "--parallelism=3", *on)
        assert rescaled.code == 0, (rescaled.err, served.log())
        for pid in served.processes():
            kill(pid, signal.SIGKILL)
        for folder in apart.disk.iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        feed.write()
        served.start()
        await_rows(feed, served)
        stopped = apart.penstock(None, "stop", job, "--savepoint", *on)
        assert stopped.code == 0, (stopped.err, served.log())
        (savepoint,) = served.client.get("/v1/savepoints").raise_for_status().json()["items"]
        assert savepoint["uri"].startswith(f"{shared}/savepoints/")
        assert ps.query_snapshot(savepoint["uri"], COUNTED).to_pylist() == [
            {"keys": SENSORS, "least": 2, "most": 2}
        ]
        feed.assert_exactly_once()
        served.client.delete(f"/v1/jobs/{job}", params={"checkpoint": True}).raise_for_status()
        assert not feed.holds(f"{shared}/jobs")
    finally:
        served.close()


def await_rows(feed: ClusterFeed, served: Served) -> None:
    await_true(lambda: len(feed.rows()) >= feed.files * SENSORS, served.log, PATIENCE_S)
