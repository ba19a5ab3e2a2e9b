"""Chaos: managers, drivers and Python workers are killed at random while jobs work; all output is checked."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from job_process import PATIENCE_S, await_true, kill, processes_of, workers_among
from reliability import Injected
from rooms import read_folder, write_file

from penstock.commands.receipt_segments import NewReceipts
from penstock.server.lifecycle.statuses import JobStatus
from penstock.server.runs.definitions import Catalog
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.processes import process_of, started_process
from penstock.server.service.job_resources import Submission
from penstock.server.service.service import JobService
from penstock.server.store.store import Store

_log = logging.getLogger(__name__)

Victim = Literal["manager", "driver", "worker"]

HEALTHY_WITHIN_S = 60.0
LEADS_WITHIN_S = 15.0
CANCELED_WITHIN_S = 10.0
SENSORS = range(20)
_JOB = Path(__file__).with_name("counting_job.py")
_DEFINITION = """
job: counting_job.py
bindings:
{bindings}
parallelism: 1
master: local[1]
batch_interval: {interval}
restart: exponential-delay:initial=200ms,max=3s,stable=1m
"""


class Load:
    """The input of one job, and its expected output. Senders repeat themselves, as careful ones do."""

    def __init__(self, root: Path, seed: str) -> None:
        self.folders = {name: root / name for name in ("readings", "commands", "sums", "seen")}
        for folder in self.folders.values():
            folder.mkdir(parents=True)
        self._chance = random.Random(seed)
        self.commands: list[dict[str, Any]] = []
        self.read = 0
        self._files = itertools.count()

    def send(self) -> None:
        """Send commands, some of them twice, some old ones again, and readings."""
        new = []
        for _ in range(4):
            command = {
                "id": f"c{len(self.commands)}",
                "kind": "add",
                "target": {"step": "sums", "key": self._chance.choice(SENSORS)},
                "payload": -1 if self._chance.random() < 0.1 else self._chance.randint(1, 9),
            }
            self.commands.append(command)
            new.append(command)
        again = self._chance.sample(self.commands, min(len(self.commands), 2))
        name = f"{next(self._files):08}.jsonl"
        write_file(self.folders["commands"], name, [*new, *self._chance.sample(new, 2), *again])
        readings = [{"sensor": self._chance.choice(SENSORS), "number": self.read + n} for n in range(20)]
        write_file(self.folders["readings"], name, readings)
        self.read += len(readings)

    def is_done(self) -> bool:
        """Return whether all readings and commands have been emitted."""
        time.sleep(0.2)
        good = sum(command["payload"] > 0 for command in self.commands)
        return _lines(self.folders["seen"]) >= self.read and _lines(self.folders["sums"]) >= good

    def check(self, checkpoint: Path) -> None:
        """Check that each command and reading appears once in receipts and outputs, and that the sums are
        right.
        """
        histories: dict[str, list[str]] = {}
        for receipt in NewReceipts(checkpoint, from_start=True).read():
            histories.setdefault(receipt.id, []).append(receipt.status)
        assert histories == {
            c["id"]: ["ACCEPTED", "VALIDATED", "DEGRADED" if c["payload"] < 0 else "APPLIED"]
            for c in self.commands
        }
        good = {c["id"]: c for c in self.commands if c["payload"] > 0}
        sums = read_folder(self.folders["sums"])
        assert Counter(one["command"] for one in sums) == Counter(list(good))
        totals: dict[int, list[int]] = {sensor: [0] for sensor in SENSORS}
        for one in sums:
            so_far = totals[one["sensor"]]
            so_far.append(so_far[-1] + good[one["command"]]["payload"])
            assert one["total"] == so_far[-1]
        seen = read_folder(self.folders["seen"])
        assert sorted(one["number"] for one in seen) == list(range(self.read))
        newest = dict.fromkeys(SENSORS, 0)
        for one in sorted(seen, key=lambda one: one["number"]):
            # A sum never decreases, and is one that the sensor had.
            assert newest[one["sensor"]] <= one["total"]
            assert one["total"] in totals[one["sensor"]]
            newest[one["sensor"]] = one["total"]


@dataclass
class Results:
    """The measured results."""

    killed: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    # Seconds from a kill until the job works again, or until a manager leads again.
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    overtaken: Counter[str] = field(default_factory=Counter)
    healthy_after_last_kill_s: float = 0.0
    cancel_s: list[float] = field(default_factory=list)

    def table(self) -> dict[str, Any]:
        """Return a table of the kills and stops, with the recovery times."""
        return {
            "kills": dict(sorted(self.killed.items())) | {"all": self.killed.total()},
            "stopped_and_continued": dict(sorted(self.stopped.items())),
            "recovery_s": {
                name: {
                    "measured": len(found),
                    "median": round(statistics.median(found), 1),
                    "max": round(max(found), 1),
                    "killed_again_before": self.overtaken[name],
                }
                for name, found in sorted(self.recovered_s.items())
                if found
            },
            "healthy_after_last_kill_s": round(self.healthy_after_last_kill_s, 1),
            "cancel_under_load_s": [round(seconds, 1) for seconds in self.cancel_s],
        }


@dataclass
class _Pending:
    victim: Victim
    at_s: float
    commits: int


class Arena:
    """Two servers on one store and home, some jobs, load, and a monitor of recoveries; a context manager."""

    def __init__(
        self, root: Path, store: str, jobs: int, seed: int, injected: Injected | None = None
    ) -> None:
        self.root, self._url = root, store
        self.injected = injected or Injected()
        self.chance = random.Random(seed)
        self.results = Results()
        self._tag = uuid.uuid4().hex
        self.home = ServerDirectory(root / "home")
        definitions = root / "definitions"
        definitions.mkdir()
        shutil.copy(_JOB, definitions)
        self.loads: dict[str, Load] = {}
        self.store = Store.open(store)
        self.service = JobService(self.store, Catalog([definitions]), self.home)
        self._servers: list[subprocess.Popen[bytes]] = []
        self._definitions = definitions
        self._seed = seed
        self._pending: dict[str, _Pending] = {}
        self._leads: list[tuple[int, int]] = []
        self._events_read = 0
        self._leader_killed_s: float | None = None
        self._stop = threading.Event()
        self._feeds = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._feed, self._watch)
        ]
        self._count = jobs
        # Other tests need the CPU time of the micro-batches.
        self._interval = "1s" if injected is None else "500ms"

    def __enter__(self) -> Self:
        for _ in range(2):
            self._start_server()
        for number in range(self._count):
            load = Load(self.root / f"job-{number}", f"{self._seed}-{number}")
            bindings = "\n".join(f"  {name}: jsonl:{folder}" for name, folder in load.folders.items())
            name = f"counting-{number}"
            definition = _DEFINITION.format(bindings=bindings, interval=self._interval)
            (self._definitions / f"{name}.yaml").write_text(definition)
            submitted = self.service.submit(Submission(definition=name), "ann").result
            assert submitted is not None
            self.loads[submitted["job"]] = load
        self._feeds.set()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)
        for server in self._servers:
            server.wait()
        self.store.close()

    # Monitoring

    def _guarded(self, work: Any) -> None:
        try:
            while not self._stop.wait(0.5):
                work()
        except BaseException as e:
            self._failed.append(e)

    def _feed(self) -> None:
        if self._feeds.is_set():
            for load in list(self.loads.values()):
                load.send()

    def _watch(self) -> None:
        """Record recoveries, and check that no job ever has two drivers."""
        self._read_events()
        for job_id, pending in list(self._pending.items()):
            if self.commits(job_id) >= pending.commits + 2 and self._pending.get(job_id) is pending:
                self.results.recovered_s.setdefault(pending.victim, []).append(
                    time.monotonic() - pending.at_s
                )
                del self._pending[job_id]
        # One may have died during the check of the others.
        both = self._two_drivers() & self._two_drivers()
        assert not both, f"two drivers: {both}"

    def _two_drivers(self) -> set[str]:
        """Return the run folders of jobs with more than one working run."""
        # Runs are told apart by folder, since a newly forked process looks like its parent.
        folders = {
            command.rstrip().rpartition(" ")[2]
            for command in self.processes().values()
            if "penstock.server.runs.driver" in command
        }
        jobs = Counter(folder.partition("/runs/")[0] for folder in folders)
        return {folder for folder in folders if jobs[folder.partition("/runs/")[0]] > 1}

    def _read_events(self) -> None:
        for event in self.store.events(after=self._events_read):
            self._events_read = event.id
            if event.what == "a manager leads":
                pid = int(event.detail["manager"].split("/")[1])
                self._leads.append((pid, event.detail["epoch"]))
                if self._leader_killed_s is not None:
                    took_s = time.monotonic() - self._leader_killed_s
                    self.results.recovered_s.setdefault("manager", []).append(took_s)
                    self._leader_killed_s = None

    def check_threads(self) -> None:
        assert not self._failed, self._failed

    # Inspection

    def processes(self) -> dict[int, str]:
        return processes_of(self._tag)

    def commits(self, job_id: str) -> int:
        """Return the newest committed micro-batch."""
        checkpoint = Path(self.service.checkpoint(job_id))
        return max(
            (int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()),
            default=-1,
        )

    def driver(self, job_id: str) -> int | None:
        """Return the driver of a job, if it lives."""
        begun = started_process(self.home.run(job_id, self.store.job(job_id).epoch))
        return begun.pid if begun is not None and process_of(begun.pid) == begun else None

    def workers(self, job_id: str) -> list[int]:
        """Return the Python processes in which a job's tasks run."""
        driver = self.driver(job_id)
        return workers_among(self._session(driver)) if driver is not None else []

    def _session(self, driver: int) -> list[int]:
        """Return all processes of a run."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == driver:
                    found.append(pid)
        return found

    def log(self) -> str:
        jobs = [(job.id, job.status, job.reason, self.commits(job.id)) for job in self.service.list_jobs()]
        outputs = "".join(path.read_text()[-1500:] for path in self.home.root.rglob("output.log"))
        return f"{jobs}\n{outputs[-6000:]}\n{(self.root / 'serve.log').read_text()[-3000:]}"

    # Killing

    def _start_server(self) -> None:
        environment = {
            **os.environ,
            "PENSTOCK_TEST_RUN": self._tag,
            "PENSTOCK_SERVER_STORE": self._url,
            "SPARK_LOCAL_DIRS": str(self.root / "spark"),
        }
        command = [sys.executable, "-m", "penstock.cli", "serve", "--bind", "127.0.0.1:0"]
        command += ["--jobs", str(self._definitions), "--home", str(self.home.root)]
        with (self.root / "serve.log").open("ab") as log:
            self._servers.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def leader(self) -> subprocess.Popen[bytes] | None:
        """Return the server that became leader last, if it lives."""
        self.check_threads()
        pid = self._leads[-1][0] if self._leads else None
        return next((server for server in self._servers if server.pid == pid), None)

    def kill(self, victim: Victim) -> None:
        """Kill a victim at a random moment."""
        self.injected.add(f"kill -9 of a {victim}")
        if victim == "manager":
            self._kill_manager()
        else:
            self._kill_part_of_job(victim)
        self.results.killed[victim] += 1
        _log.info("kill %s: %s", self.results.killed.total(), victim)
        self.check_threads()

    def _kill_manager(self) -> None:
        time.sleep(self.chance.uniform(0, 4))
        leader = self.leader()
        of_leader = leader is not None and self.chance.random() < 0.7
        server = leader if of_leader and leader is not None else self.chance.choice(self._servers)
        if server is leader and self._leader_killed_s is None:
            self._leader_killed_s = time.monotonic()
        server.kill()
        server.wait()
        self._servers.remove(server)
        time.sleep(self.chance.uniform(0, 2))
        self._start_server()

    def _kill_part_of_job(self, victim: Victim) -> None:
        """Kill a part of a working job, or now and then of one that is only starting."""
        found: list[tuple[str, int]] = []
        starting = victim == "driver" and self.chance.random() < 0.4

        def find() -> bool:
            self.check_threads()
            for job_id in self.chance.sample(sorted(self.loads), len(self.loads)):
                if (job_id in self._pending) is not starting and self._pending:
                    continue
                pids = [self.driver(job_id)] if victim == "driver" else self.workers(job_id)
                pid = next(iter(pids), None)
                if pid is not None:
                    found.append((job_id, pid))
                    return True
            # Polling takes CPU time that the jobs need.
            time.sleep(0.2)
            return False

        await_true(find, lambda: f"no {victim} to kill: {self.log()}")
        time.sleep(self.chance.uniform(0, 3))
        job_id, pid = found[-1]
        if job_id in self._pending:
            self.results.overtaken[self._pending[job_id].victim] += 1
        self._pending[job_id] = _Pending(victim, time.monotonic(), self.commits(job_id))
        kill(pid, signal.SIGKILL)

    def stop_leader(self) -> None:
        """Suspend the leader until another leads, then let it continue."""
        self.injected.add("leader that stands still beyond its lease")
        await_true(lambda: self.leader() is not None, self.log)
        leader, before = self.leader(), len(self._leads)
        assert leader is not None
        leader.send_signal(signal.SIGSTOP)
        await_true(lambda: len(self._leads) > before or self.check_threads(), self.log, LEADS_WITHIN_S + 5)
        leader.send_signal(signal.SIGCONT)
        self.results.stopped["manager"] += 1

    def stop_driver(self) -> None:
        """Suspend all processes of a job for some seconds."""
        job_id = self.chance.choice(sorted(self.loads))
        driver = self.driver(job_id)
        if driver is None:
            return
        self.injected.add("job that stands still for seconds")
        family = self._session(driver)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in family:
                kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(self.chance.uniform(2, 6))
        self.results.stopped["job"] += 1

    # The end

    def await_health(self, since_s: float, within_s: float) -> None:
        """Wait until all jobs are RUNNING, and have committed since the last kill."""
        before = {job_id: self.commits(job_id) for job_id in self.loads}
        await_true(
            lambda: (
                self.check_threads()
                or all(
                    self.service.get(job_id).status is JobStatus.RUNNING
                    and self.commits(job_id) >= commits + 2
                    for job_id, commits in before.items()
                )
            ),
            self.log,
            within_s,
        )
        self.results.healthy_after_last_kill_s = time.monotonic() - since_s
        assert self.results.healthy_after_last_kill_s < within_s

    def cancel_and_continue(self) -> None:
        """Cancel a job during its work; another job continues with its checkpoint."""
        job_id = self.chance.choice(sorted(self.loads))
        begun_s = time.monotonic()
        self.service.cancel(job_id, "ann")
        await_true(lambda: self.service.get(job_id).status is JobStatus.CANCELED, self.log, CANCELED_WITHIN_S)
        self.results.cancel_s.append(time.monotonic() - begun_s)
        definition = self.service.get(job_id).definition
        submitted = self.service.submit(Submission(definition=definition, continues=job_id), "ann").result
        assert submitted is not None
        self.loads[submitted["job"]] = self.loads.pop(job_id)

    def check(self) -> None:
        """Stop sending and check: all output appears once, no job is lost or doubled, and no process survives
        the cancels.
        """
        self._feeds.clear()
        time.sleep(1)
        await_true(
            lambda: self.check_threads() or all(load.is_done() for load in self.loads.values()), self.log
        )
        live = {job.id for job in self.store.live_jobs()}
        assert live == set(self.loads)
        for job_id, load in self.loads.items():
            load.check(self.service.checkpoint(job_id))
        begun_s = time.monotonic()
        for job_id in live:
            self.service.cancel(job_id, "ann")
        await_true(lambda: not self.store.live_jobs(), self.log, CANCELED_WITHIN_S + LEADS_WITHIN_S)
        assert time.monotonic() - begun_s < CANCELED_WITHIN_S
        servers = {server.pid for server in self._servers}
        await_true(lambda: set(self.processes()) <= servers, lambda: f"left behind: {self.processes()}")


def run_chaos(
    root: Path,
    store: str,
    jobs: int,
    seed: int,
    victims: Sequence[Victim],
    injected: Injected | None = None,
) -> dict[str, Any]:
    """Kill the victims one after the other; check and return the results.

    All jobs must be healthy within 60 s, and then one is canceled during its work, and another continues with
    its checkpoint; this part is left out when faults are not recorded, as on a machine with other tests to
    run.
    """
    begun_s = time.monotonic()
    short = injected is None
    with Arena(root, store, jobs, seed, injected) as arena:
        # A job may start while its manager is killed.
        await_true(
            lambda: (
                arena.check_threads()
                or all(
                    arena.driver(job_id) is not None if short else arena.commits(job_id) >= 1
                    for job_id in arena.loads
                )
            ),
            arena.log,
        )
        for number, victim in enumerate(victims, 1):
            arena.kill(victim)
            if number % 24 == 12:
                arena.stop_leader()
            if number % 24 == 0:
                arena.stop_driver()
        arena.await_health(time.monotonic(), PATIENCE_S if short else HEALTHY_WITHIN_S)
        if not short:
            arena.cancel_and_continue()
        arena.check()
        return {
            "seed": seed,
            "jobs": jobs,
            "managers": 2,
            **arena.results.table(),
            "runs": sum(len(arena.store.runs(job.id)) for job in arena.store.jobs()),
            "leaderships": len(arena._leads),
            "records": sum(load.read for load in arena.loads.values()),
            "commands": sum(len(load.commands) for load in arena.loads.values()),
            "lost_or_doubled_jobs": 0,
            "lost_or_doubled_records": 0,
            "duration_s": round(time.monotonic() - begun_s),
        }


def write_results(results: dict[str, Any], command: str) -> None:
    """Write the results to the folder that the environment names, if any."""
    folder = os.environ.get("PENSTOCK_CHAOS_RESULTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        content = {"command": command, "cores": os.cpu_count(), **results}
        (Path(folder) / "job_manager.json").write_text(json.dumps(content, indent=2) + "\n")


def _lines(folder: Path) -> int:
    """Count the records in the files of a sink, without parsing them."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("part-*.jsonl"))
