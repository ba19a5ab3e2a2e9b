"""The manager: polls jobs and their drivers, decides, records and acts. One of several leads at a time."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.checkpoint import Checkpoint
from penstock.checkpoints.stored_checkpoint import is_stored
from penstock.errors import (
    CheckpointMissingError,
    JobChangedError,
    LeadershipLostError,
    PenstockError,
    StoreError,
    UnknownIdError,
    system_error_of,
)
from penstock.jobs.requests import Answer, Request, answer_to, post
from penstock.server.lifecycle.decisions import Decision, Driver, DriverState, Effect, decide
from penstock.server.lifecycle.statuses import ENDED, WITH_DRIVER, JobStatus
from penstock.server.manager.autoscaler import Autoscaler
from penstock.server.manager.operations import OperationWorker
from penstock.server.manager.recurring_failures import RecurringFailures
from penstock.server.runs.definitions import Catalog, JobSettings
from penstock.server.runs.directory import ServerDirectory
from penstock.server.runs.driver import Launch
from penstock.server.runs.lease_places import leases_of
from penstock.server.runs.leases import Lease, LeaseWatch, lease_of, offer, revoke
from penstock.server.runs.processes import (
    Processes,
    cancel_launch,
    fail_unstarted,
    kill_all,
    observe,
    refuse,
    started_process,
    terminate,
)
from penstock.server.runs.retention import Kept, keep_within
from penstock.server.runs.run_requests import answer_of_run, post_to_run
from penstock.server.store.row_types import JobRow
from penstock.server.store.store import Store, wall_clock_ms
from penstock.server.store.user_requests import MANAGER

__all__ = ["Manager", "ManagerSettings"]

_log: Final = logging.getLogger(__name__)
_DRIVER: Final = (sys.executable, "-P", "-m", "penstock.server.runs.driver")
# A job takes a few steps before it has to wait.
_MAX_STEPS: Final = 8
_KEEP_S: Final = 10.0
_ALL: Final = "The manager cannot finish its work"


@dataclass(frozen=True)
class ManagerSettings:
    """The settings of a manager.

    It polls the jobs every `poll_s` seconds, and the metrics of jobs with a scaling policy every `scaling_s`. It leads
    for `lease_s` and renews the lease in time; after its death another manager waits that long. A run on another
    machine counts as dead after `run_lease_s` of silence. `kept` limits what is kept of runs and operations.
    `job_umask` is the umask of jobs, since others may read their outputs; -1 means the umask of the manager.
    """

    poll_s: float = 0.5
    lease_s: float = 10.0
    run_lease_s: float = 30.0
    scaling_s: float = 5.0
    kept: Kept = field(default_factory=Kept)
    job_umask: int = -1


class Manager:
    """The control loop that brings jobs to the status that users desire.

    Args:
        store: the store of what users desire and what was decided.
        catalog: the definitions of jobs.
        home: the folder of this manager. Managers on one machine that share it find each other's drivers by locks,
            others by leases next to the checkpoints.
        settings: see `ManagerSettings`.
        now_ms: the clock.
        on_lead: called when this manager becomes the leader.
        host: the name of this machine.

    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        home: ServerDirectory,
        settings: ManagerSettings = ManagerSettings(),  # it is frozen
        now_ms: Callable[[], int] | None = None,
        on_lead: Callable[[], None] | None = None,
        host: str | None = None,
    ) -> None:
        self._store: Final = store
        self._catalog: Final = catalog
        self._home: Final = home
        self._settings: Final = settings
        self._now_ms: Final = now_ms or wall_clock_ms
        self._on_lead: Final = on_lead or (lambda: None)
        self._host: Final = host or os.uname().nodename
        self.name: Final = f"{self._host}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._leases: Final = LeaseWatch(settings.run_lease_s)
        # Whether this machine started a run from this folder, by job and run.
        self._here: dict[tuple[str, int], bool] = {}
        self._processes: Final = Processes(settings.job_umask)
        self._operator: Final = OperationWorker(
            store, home, self._post, self._answer, Processes(settings.job_umask)
        )
        self._autoscaler: Final = Autoscaler(store, home, now_ms)
        self._exit_codes: dict[Path, int] = {}
        self._failures: Final = RecurringFailures(_log)
        # Work that this manager need not repeat, though a repetition would be harmless.
        self._noted: set[tuple[str, int]] = set()
        self._asked: set[str] = set()
        # Jobs and their last runs that do not start because their checkpoint is unavailable.
        self._waiting: set[tuple[str, int]] = set()
        self._leader: int | None = None
        self._lead_again_s = 0.0
        self._keep_again_s = 0.0
        self._wakes: Final = threading.Event()

    @property
    def leads(self) -> bool:
        """Whether this manager led at its last poll."""
        return self._leader is not None

    def wake(self) -> None:
        """Poll immediately, because a user has requested something."""
        self._wakes.set()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Jobs continue, and the next manager finds them."""
        scaling = threading.Thread(target=self._scale, args=(stop,), name="penstock-autoscaler", daemon=True)
        scaling.start()
        try:
            while not stop.is_set():
                wait_s = self.look()
                self._wakes.wait(min(wait_s, self._settings.poll_s))
                self._wakes.clear()
        finally:
            if self.leads:
                try:
                    self._store.resign(self.name)
                except StoreError as e:
                    _log.warning("Cannot release the leadership: %s", e)

    def end_job(self, job_id: str, stop: threading.Event, timeout_s: float) -> None:
        """Manage a single job until it ends, `stop` is set, or the timeout expires.

        If another manager leads in the meantime, it manages the job.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline_s and self._store.job(job_id).status not in ENDED:
                wait_s = (
                    self._look_at(self._store.job(job_id)) if self._renew_lead() else self._settings.poll_s
                )
                stop.wait(min(wait_s, self._settings.poll_s))
        finally:
            if self.leads:
                self._store.resign(self.name)

    def _scale(self, stop: threading.Event) -> None:
        """Scale jobs until `stop` is set. Runs in its own thread because metrics may be on slow disks."""
        while not stop.wait(self._settings.scaling_s):
            leader = self._leader
            if leader is None:
                continue
            try:
                if self._autoscaler.look(leader):
                    self.wake()
            except (LeadershipLostError, StoreError) as e:
                _log.warning("Jobs are not being scaled: %s", e)
            except Exception:
                # Jobs continue as they are.
                _log.exception("Cannot scale jobs")

    def look(self) -> float:
        """Poll all jobs once and return the most seconds until the next poll."""
        try:
            if not self._renew_lead():
                return self._settings.poll_s
            assert self._leader is not None
            self._reap()
            waits = [self._look_at(job) for job in self._store.live_jobs()]
            self._operator.work(self._leader)
            self._apply_retention()
        except LeadershipLostError as e:
            _log.warning("%s", e)
            self._leader = None
            return self._settings.poll_s
        except StoreError as e:
            # Without the store nothing is decided; jobs continue without the manager.
            self._failures.log_failure(_ALL, e)
            return self._settings.poll_s
        except Exception as e:
            # A full disk, for example: try again, and keep accepting requests.
            self._failures.log_failure(_ALL, e)
            return self._settings.poll_s
        self._failures.log_success(_ALL)
        return min([self._settings.poll_s, *waits])

    def _apply_retention(self) -> None:
        """Delete old files from time to time, so that jobs do not fill the disk."""
        now_s = time.monotonic()
        if now_s >= self._keep_again_s:
            self._keep_again_s = now_s + _KEEP_S
            runs = [(job.id, job.epoch) for job in self._store.live_jobs() if job.epoch]
            unfinished = {found.id for found in self._store.unfinished_operations(["savepoint", "rescale"])}
            keep_within(self._home, self._settings.kept, runs, unfinished)

    def _reap(self) -> None:
        for folder, code in self._processes.reap().items():
            self._exit_codes[folder] = code
            # A run that ended before it began would restart forever. A deleted job has no folder.
            if folder.exists():
                fail_unstarted(
                    folder, f"Its process ended with code {code} before it began. See the output of the run."
                )

    def _renew_lead(self) -> bool:
        """Renew the lease after a third of its time, and return whether this manager leads."""
        now_s = time.monotonic()
        if self._leader is None or now_s >= self._lead_again_s:
            leader = self._store.lead(self.name, int(self._settings.lease_s * 1000))
            if leader is not None and leader != self._leader:
                # It acts only after this is recorded; otherwise it requests the same lease again.
                self._store.add_event(None, "a manager leads", {"manager": self.name, "epoch": leader})
                self._on_lead()
            if leader is None and self._leader is not None:
                _log.warning("Another manager leads. This one may lead again when the other ends.")
            self._leader = leader
            self._lead_again_s = now_s + self._settings.lease_s / 3
        return self.leads

    # One job

    def _look_at(self, job: JobRow) -> float:
        """Advance a job as far as possible and return the most seconds until the next poll."""
        what = f"The job {job.id} cannot be managed"
        try:
            for _ in range(_MAX_STEPS):
                after, wait_s = self._step(job)
                if after is None:
                    self._failures.log_success(what)
                    return wait_s
                job = after
        except (JobChangedError, UnknownIdError):
            # A user has requested something else in the meantime.
            return 0.0
        except CheckpointMissingError as e:
            self._wait_for_checkpoint(job, e)
        except (LeadershipLostError, StoreError):
            raise
        except Exception as e:
            # This job must not hold up other jobs.
            self._failures.log_failure(what, e)
            return self._settings.poll_s
        self._failures.log_success(what)
        return self._settings.poll_s

    def _wait_for_checkpoint(self, job: JobRow, error: CheckpointMissingError) -> None:
        """Record once that a job waits for its unavailable checkpoint. It starts when the checkpoint is back."""
        if (job.id, job.epoch) not in self._waiting:
            self._waiting.add((job.id, job.epoch))
            assert self._leader is not None
            _log.warning("The job %s does not start: %s", job.id, error)
            detail = {"reason": str(error)}
            self._store.add_event_of_leader(self._leader, job.id, MANAGER, "waits for its checkpoint", detail)

    def _step(self, job: JobRow) -> tuple[JobRow | None, float]:
        """Observe, decide, record and act. Returns the job if its status changed, and the seconds to wait if not."""
        folder = self._home.run(job.id, job.epoch)
        driver = self._observe_driver(job, folder)
        decision = decide(job.facts, driver, self._now_ms())
        after = self._record(job, driver, decision) if decision.changes else None
        if decision.effect is not None:
            self._act(decision.effect, after or job, folder)
        wait_s = self._settings.poll_s if decision.wait_ms is None else decision.wait_ms / 1000
        return (after if decision.status is not None else None), wait_s

    def _observe_driver(self, job: JobRow, folder: Path) -> Driver:
        """Observe the newest run of a job."""
        if job.epoch == 0:
            return Driver(DriverState.NONE)
        is_here = self._is_here(job, folder)
        driver = observe(folder) if is_here else self._look_elsewhere(job)
        if is_here and driver.state is DriverState.ALIVE and (job.id, job.epoch) not in self._noted:
            begun = started_process(folder)
            if begun is not None:
                assert self._leader is not None
                run = self._store.run(job.id, job.epoch)
                self._store.note_process(self._leader, run, begun.pid, begun.started_ticks, begun.boot)
                self._noted.add((job.id, job.epoch))
        if driver.end is None or job.status not in WITH_DRIVER:
            return driver
        answer = self._answer(job, _stop_request(job).id)
        if answer is None:
            return driver
        end = dataclasses.replace(driver.end, stop_done=True, stop_error=answer.error, details=answer.details)
        return dataclasses.replace(driver, end=end)

    def _is_here(self, job: JobRow, folder: Path) -> bool:
        """Return whether this machine started the newest run of a job from this folder."""
        run = (job.id, job.epoch)
        if run not in self._here:
            lease = lease_of(leases_of(job.checkpoint), *run)
            host = self._store.run(*run).host if lease is None else lease.host
            mine = host == self._host and (lease is None or lease.home == str(self._home.root))
            self._here[run] = mine and folder.exists()
        return self._here[run]

    def _look_elsewhere(self, job: JobRow) -> Driver:
        """Observe a run that another machine started."""
        driver = self._leases.look(leases_of(job.checkpoint), job.id, job.epoch)
        if driver.state is DriverState.UNKNOWN and (job.id, job.epoch) not in self._noted:
            self._noted.add((job.id, job.epoch))
            _log.warning(
                "Run %s of the job %s was started on another machine, and its checkpoint %s is not shared with "
                "this one. Only a manager on that machine can manage it.",
                *(job.epoch, job.id, job.checkpoint),
            )
        return driver

    def _prepare_run(self, job: JobRow) -> None:
        """Prepare the next run of a job before it is recorded. Its folder and its lease show who owns it."""
        # A run with a checkpoint on an object store checks this itself, in the files that it fetches.
        if self._store.has_run(job.checkpoint) and not is_stored(job.checkpoint):
            Checkpoint(job.folder).check_there()
        self._home.run(job.id, job.epoch + 1).mkdir(parents=True, exist_ok=True, mode=0o700)
        lease = Lease(job.id, job.epoch + 1, self._host, str(self._home.root))
        offer(leases_of(job.checkpoint), lease)

    def _record(self, job: JobRow, driver: Driver, decision: Decision) -> JobRow:
        assert self._leader is not None
        if decision.status is JobStatus.STARTING:
            self._store.check_leader(self._leader)
            self._prepare_run(job)
        if driver.end is not None and job.status in WITH_DRIVER:
            folder = self._home.run(job.id, job.epoch)
            self._processes.await_exit(folder)
            self._reap()
            code = self._exit_codes.pop(folder, None)
            self._store.note_end(self._leader, self._store.run(job.id, job.epoch), driver.end, code)
        after = self._store.record(self._leader, job, decision, host=self._host, end=driver.end)
        if decision.status is not None:
            _log.info("%s: %s -> %s: %s", job.id, job.status, after.status, after.reason)
        return after

    def _act(self, effect: Effect, job: JobRow, folder: Path) -> None:
        # This process may have been suspended since it observed the job.
        assert self._leader is not None
        self._store.check_leader(self._leader)
        if effect is Effect.LAUNCH:
            self._launch(job, folder)
        elif effect is Effect.VOID:
            cancel_launch(folder)
        elif effect is Effect.ASK_STOP:
            self._ask_stop(job)
        elif not self._is_here(job, folder):
            revoke(leases_of(job.checkpoint), job.id, job.epoch, kill=effect is Effect.KILL)
        else:
            begun = started_process(folder)
            if begun is not None:
                terminate(begun) if effect is Effect.TERMINATE else kill_all(begun)

    def _launch(self, job: JobRow, folder: Path) -> None:
        try:
            definition = self._catalog.definition(job.definition)
            settings = JobSettings.model_validate(job.settings).run_settings(job.checkpoint)
            settings["must_continue"] = self._store.has_run(job.checkpoint)
        except (PenstockError, ValueError) as e:
            if system_error_of(e) is not None:
                raise
            refuse(folder, str(e))
            return
        lease = Lease(job.id, job.epoch, self._host, str(self._home.root))
        launch = Launch(
            job_id=job.id,
            run=job.epoch,
            lease=offer(leases_of(job.checkpoint), lease),
            file=definition.file,
            entry_point=definition.entry_point,
            settings=settings,
        )
        # With a full disk or too many processes, the next poll tries again.
        self._processes.launch(
            folder, (*_DRIVER, str(folder)), msgspec.json.encode(launch), Path(definition.folder)
        )

    def _ask_stop(self, job: JobRow) -> None:
        request = _stop_request(job)
        if request.id not in self._asked:
            self._post(job, request)
            self._asked.add(request.id)

    def _has_folder(self, job: JobRow) -> bool:
        """Return whether the newest run of a job works in a folder that this machine sees."""
        return not is_stored(job.checkpoint) or self._is_here(job, self._home.run(job.id, job.epoch))

    def _post(self, job: JobRow, request: Request) -> None:
        """Send a request to the newest run of a job."""
        if self._has_folder(job):
            post(job.folder, request)
        else:
            post_to_run(leases_of(job.checkpoint), job.id, job.epoch, request)

    def _answer(self, job: JobRow, request_id: str) -> Answer | None:
        """Return the answer of the newest run of a job, None if there is none yet."""
        if self._has_folder(job):
            return answer_to(job.folder, request_id)
        return answer_of_run(leases_of(job.checkpoint), job.id, job.epoch, request_id)


def _stop_request(job: JobRow) -> Request:
    """Return the stop request to the newest run of a job. Each run gets its own id and savepoint."""
    stop = job.stop
    if stop is None:
        return Request(id=f"pause-{job.epoch}", action="stop", run=job.epoch)
    return Request(
        id=f"{stop.operation}-{job.epoch}",
        action="stop",
        savepoint=None if stop.uri is None else f"{stop.uri}-{job.epoch}",
        savepoint_id=None if stop.savepoint is None else f"{stop.savepoint}-{job.epoch}",
        drain=stop.drain,
        run=job.epoch,
    )
