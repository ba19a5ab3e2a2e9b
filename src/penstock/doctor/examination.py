"""Examination: all checks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.doctor import machine, object_store, software, storage
from penstock.doctor.findings import Finding, failed

__all__ = ["Wanted", "examine"]


@dataclass(frozen=True)
class Wanted:
    """The things to check besides this machine: a checkpoint, a job with its bindings, ports that must be free."""

    checkpoint: Path | None = None
    job_file: str | None = None
    bindings: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()


def examine(wanted: Wanted) -> Iterator[Finding]:
    """Run every check, and yield each finding at once. Starts no job and downloads nothing."""
    yield from _run_check("python", software.check_python)
    yield from _run_check("packages", lambda: software.check_packages(software.installed_requirements()))
    yield from _run_check("workers", software.check_worker_python)
    yield from _run_check("spark", software.check_spark_home)
    yield from _run_check("java", software.check_java)
    yield from _run_check("jars", software.check_jars)
    yield from _run_check("classes", software.check_class_archive)
    for folder in storage.job_folders():
        yield from _run_check(folder.check, partial(storage.check_folder, folder))
    yield from _run_check("cores", machine.check_cores)
    yield from _run_check("memory", machine.check_memory)
    yield from _run_check("open files", machine.check_open_files)
    yield from _run_check("loopback", machine.check_loopback)
    yield from _run_check("server port", machine.check_server_port)
    for port in wanted.ports:
        yield from _run_check(f"port {port}", partial(machine.check_port, port))
    yield from _run_check("host name", machine.check_host_name)
    yield from _run_check("clock", machine.check_clock)
    for variable, endpoint in object_store.named_endpoint():
        yield from _run_check("object store", partial(object_store.check_object_store, variable, endpoint))
    if wanted.checkpoint is not None:
        yield from _run_check("checkpoint", lambda: _of_checkpoint(wanted))
    if wanted.job_file is not None:
        yield from _run_check("job", lambda: _of_job(wanted))


def _of_checkpoint(wanted: Wanted) -> Iterator[Finding]:
    # These rooms load Spark's package, which an earlier check has examined.
    from penstock.checkpoints.checkpoint import Checkpoint
    from penstock.doctor.checkpoints import checkpoint_folder, examine_checkpoint

    assert wanted.checkpoint is not None
    yield storage.check_folder(checkpoint_folder(wanted.checkpoint))
    yield from examine_checkpoint(Checkpoint(wanted.checkpoint))


def _of_job(wanted: Wanted) -> Iterator[Finding]:
    from penstock.checkpoints.checkpoint import Checkpoint
    from penstock.doctor.bindings import examine_bindings, try_to_load
    from penstock.doctor.checkpoints import check_fit

    assert wanted.job_file is not None
    job, finding = try_to_load(wanted.job_file)
    yield finding
    if job is None:
        return
    if wanted.checkpoint is not None and (fit := check_fit(Checkpoint(wanted.checkpoint), job)) is not None:
        yield fit
    yield from examine_bindings(job, wanted.bindings)


def _run_check(check: str, examined: Callable[[], Finding | Iterable[Finding]]) -> Iterator[Finding]:
    """Run a check; an error in it is a finding too, and the other checks continue."""
    try:
        found = examined()
        yield from [found] if isinstance(found, Finding) else found
    except Exception as e:  # on a broken machine anything may fail
        yield failed(
            check,
            f"the check failed ({type(e).__name__}: {e})",
            "Fix the other failures, and run penstock doctor again.",
        )
