"""Driver: the program of one run of a job. It follows its launch file, and writes its final status.

The manager starts it as `python -m penstock.server.runs.driver FOLDER`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.base.durable import write_atomically
from penstock.checkpoints.stored_checkpoint import is_stored, working_folder
from penstock.errors import (
    BindingError,
    FencedError,
    JobDefinitionError,
    PenstockError,
    fault_of,
    is_retryable,
    system_error_of,
)
from penstock.server.runs.lease_places import leases_of
from penstock.server.runs.leases import LeaseKeeper
from penstock.server.runs.processes import (
    ALIVE_VARIABLE,
    BEGUN_FILE,
    ENDED_FILE,
    LAUNCH_FILE,
    PROGRESS_FILE,
    Ended,
    EndedKind,
    process_of,
)
from penstock.server.runs.run_requests import RequestRelay

if TYPE_CHECKING:
    from penstock.jobs.settings import RunSettings

__all__ = ["ENTRY_POINTS", "Launch", "expand_variables", "keep_lease", "main"]

ENTRY_POINTS: Final = "penstock.jobs"
"""The entry point group under which installed packages offer jobs."""

_PROGRESS_S: Final = 1.0
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The launch of a driver: the job to run, of a file (`FILE[:ATTR]`) or an entry point, and its settings.

    `settings` are the fields of RunSettings. `${NAME}` in a binding is an environment variable. `lease` is the
    number of the run's lease on its checkpoint.
    """

    job_id: str
    run: int
    lease: int
    file: str | None = None
    entry_point: str | None = None
    settings: dict[str, Any] = {}


def main() -> None:
    """Run the job."""
    folder = Path(sys.argv[1])
    # The children of this process must not keep the run alive after its death.
    os.set_inheritable(int(os.environ.pop(ALIVE_VARIABLE)), False)
    write_atomically(folder / BEGUN_FILE, msgspec.json.encode(process_of(os.getpid())))
    launch = msgspec.json.decode((folder / LAUNCH_FILE).read_bytes(), type=Launch)
    with keep_lease(launch) as keeper:
        code, ended = _run(folder, launch, keeper)
        write_atomically(folder / ENDED_FILE, msgspec.json.encode(ended))
        keeper.end(ended)
    sys.exit(code)


def keep_lease(launch: Launch) -> LeaseKeeper:
    """Return the keeper of the run's lease, which also relays requests if the checkpoint is on an object store."""
    checkpoint = launch.settings["checkpoint"]
    leases = leases_of(checkpoint)
    if not is_stored(checkpoint):
        return LeaseKeeper(leases, launch.lease)
    relay = RequestRelay(leases, launch.lease, working_folder(checkpoint))
    return LeaseKeeper(leases, launch.lease, relay=relay.relay)


def _run(folder: Path, launch: Launch, keeper: LeaseKeeper) -> tuple[int, Ended]:
    """Run the job to its end, and return the exit code and the final status."""
    try:
        summary = _run_job(folder, launch, keeper)
    except PenstockError as e:
        # The manager's events have the error too, but readers of the output expect it here.
        _print_line(f"Error: {e}")
        return e.exit_code, Ended(_kind_of(e), str(e))
    except Exception as e:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        kind: EndedKind = "failed" if system_error_of(e) is None else "hindered"
        return 1, Ended(kind, f"{type(e).__name__}: {e}. See the output of the run.")
    if summary.status == "finished":
        return 0, Ended("finished", f"Its input is finished; micro-batches of the run: {summary.batches}.")
    return 0, Ended("stopped", f"Its driver stopped gracefully; micro-batches of the run: {summary.batches}.")


def _kind_of(error: PenstockError) -> EndedKind:
    if system_error_of(error) is not None:
        return "hindered"
    # A run that should not exist fenced this one off. The newest run may continue, so the job is not refused.
    refused = fault_of(error) == "user" and not is_retryable(error) and not isinstance(error, FencedError)
    return "refused" if refused else "failed"


def _print_line(text: str) -> None:
    """Write a line to the output of the run. On a full disk, the job continues without it."""
    with contextlib.suppress(OSError):
        print(text, flush=True)  # noqa: T201  # the output of the run is standard output


def _run_job(folder: Path, launch: Launch, keeper: LeaseKeeper) -> Any:
    from penstock.jobs.early_jvm import early_jvm
    from penstock.jobs.settings import RunSettings
    from penstock.jobs.worker_output import output_log

    # The output of functions appears in the output of the run.
    printed = logging.StreamHandler(sys.stdout)
    printed.setFormatter(logging.Formatter("output: %(message)s"))
    output_log.addHandler(printed)
    output_log.setLevel(logging.INFO)
    settings = dict(launch.settings)
    settings["bindings"] = expand_variables(settings.get("bindings", {}), os.environ)
    checked = RunSettings(**settings)
    with early_jvm(
        master=checked.master,
        checkpoint=checked.checkpoint,
        memory_mb=checked.memory_mb,
        checkpoint_interval_ms=checked.checkpoint_interval_ms,
        spark_settings=checked.spark_settings,
    ):
        return _run_loaded(folder, launch, keeper, checked)


def _run_loaded(folder: Path, launch: Launch, keeper: LeaseKeeper, settings: RunSettings) -> Any:
    job, code = _job(launch)
    # Imports Spark, and only now, so that earlier errors appear at once.
    from penstock.jobs.runner import JobRunner, Progress, RunHooks

    written_s = -_PROGRESS_S

    def on_progress(progress: Progress) -> None:
        nonlocal written_s
        keeper.working = True
        now_s = time.monotonic()
        if now_s - written_s >= _PROGRESS_S:
            written_s = now_s
            content = {"at_ms": time.time_ns() // 1_000_000, **vars(progress)}
            # If this fails, readers see that the progress is old.
            with contextlib.suppress(OSError):
                write_atomically(folder / PROGRESS_FILE, msgspec.json.encode(content), durable=False)

    runner = JobRunner(job, settings, code, launch.run)
    for note in runner.notes:
        _print_line(f"Note: {note}")
    return runner.run(hooks=RunHooks(on_progress=on_progress, on_note=_print_line))


def _job(launch: Launch) -> tuple[Any, dict[str, Path]]:
    from penstock.jobs.job_loader import load_job
    from penstock.streams.job_description import JobDescription

    if launch.file is not None:
        loaded = load_job(launch.file)
        return loaded.job, loaded.code
    import importlib.metadata

    found = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=launch.entry_point or ""))
    job = found[0].load() if found else None
    if not isinstance(job, JobDescription):
        raise JobDefinitionError(
            f"No installed package offers a job as the entry point {launch.entry_point!r} of {ENTRY_POINTS}."
        )
    return job, {}


def expand_variables(bindings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return bindings with `${NAME}` replaced by its value. Raises BindingError if a variable is not set.

    >>> expand_variables({"hits": "kafka://${BROKER}/hits"}, {"BROKER": "127.0.0.1:9092"})
    {'hits': 'kafka://127.0.0.1:9092/hits'}
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environment:
            raise BindingError(
                f"A binding has ${{{name}}}, and the variable {name} is not set. Set it where the manager is started."
            )
        return environment[name]

    return {name: _VARIABLE.sub(value, uri) for name, uri in bindings.items()}


if __name__ == "__main__":
    main()
