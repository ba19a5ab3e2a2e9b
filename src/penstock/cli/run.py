"""The command line of a run in this process: `penstock run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from penstock.cli.output import Output, OutputOption, errors_as_sentences, print_json, stderr
from penstock.cli.run_options import (
    BATCH_INTERVAL,
    AllowNonRestoredStateOption,
    AllowReadOption,
    AllowWriteOption,
    BoundedOption,
    CheckpointOption,
    DefineOption,
    FiguresOption,
    FreshOption,
    FromDumpOption,
    FromSavepointOption,
    JobFileArgument,
    KeepPositionsOption,
    LockTimeoutOption,
    LogFormat,
    LogFormatOption,
    LogSizeOption,
    MasterOption,
    MaxCommandBytesOption,
    MaxHeldBytesOption,
    MetricsAllowRemoteOption,
    MetricsBindOption,
    MustContinueOption,
    NewOutputsFromOption,
    ParallelismOption,
    ReceiptsOption,
    ReplanOption,
    StateMemoryOption,
    StrictOption,
)
from penstock.jobs.log_display import LogDisplay

if TYPE_CHECKING:
    from penstock.jobs.settings import RunSettings

__all__ = ["run"]


def run(
    job_file: JobFileArgument,
    define: DefineOption = None,
    bounded: BoundedOption = False,
    checkpoint: CheckpointOption = None,
    parallelism: ParallelismOption = None,
    batch_interval: Annotated[int, BATCH_INTERVAL] = 0,
    master: MasterOption = "local[*]",
    max_command_bytes: MaxCommandBytesOption = 1 << 20,
    max_held_bytes: MaxHeldBytesOption = 256 << 20,
    state_memory_mb: StateMemoryOption = 1024,
    receipts_mb: ReceiptsOption = 256,
    figures_mb: FiguresOption = 32,
    log_mb: LogSizeOption = 64,
    lock_timeout: LockTimeoutOption = 60.0,
    from_savepoint: FromSavepointOption = None,
    from_dump: FromDumpOption = None,
    must_continue: MustContinueOption = False,
    fresh: FreshOption = False,
    keep_positions: KeepPositionsOption = None,
    allow_non_restored_state: AllowNonRestoredStateOption = False,
    allow_read: AllowReadOption = None,
    allow_write: AllowWriteOption = None,
    new_outputs_from: NewOutputsFromOption = None,
    replan: ReplanOption = None,
    metrics_bind: MetricsBindOption = None,
    metrics_allow_remote: MetricsAllowRemoteOption = False,
    log_format: LogFormatOption = LogFormat.text,
    strict: StrictOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Run a job in this process.

    Exit codes: 0 finished or stopped, 1 the job failed, 2 wrong use (arguments, bindings, job file, checkpoint, or a
    bad record with --strict), 3 an external system failed, 130 interrupted before the job ran.
    """
    with _errors_reported(log_format) as log:
        from penstock.jobs.settings import RunSettings

        settings = RunSettings(
            bindings=_bindings(define),
            bounded=bounded,
            checkpoint=checkpoint,
            parallelism=parallelism,
            batch_interval_ms=batch_interval,
            master=master,
            max_command_bytes=max_command_bytes,
            max_held_bytes=max_held_bytes,
            state_memory_mb=state_memory_mb,
            receipts_mb=receipts_mb,
            figures_mb=figures_mb,
            log_mb=log_mb,
            from_savepoint=from_savepoint,
            from_dump=from_dump,
            must_continue=must_continue,
            fresh=fresh,
            keep_positions=keep_positions,
            allow_non_restored_state=allow_non_restored_state,
            new_outputs_from=new_outputs_from,
            replan=replan,
            lock_timeout_s=lock_timeout,
            allow_read=_absolute(allow_read),
            allow_write=_absolute(allow_write),
            metrics_bind=metrics_bind,
            metrics_allow_remote=metrics_allow_remote,
            strict=strict,
        )
        _run_file(job_file, settings, log, output)


@contextmanager
def _errors_reported(log_format: LogFormat) -> Iterator[LogDisplay | None]:
    """Report errors for people, or in a log of JSON, which is handed over."""
    with ExitStack() as stack:
        log = stack.enter_context(LogDisplay()) if log_format is LogFormat.json else None
        stack.enter_context(errors_as_sentences(tell=None if log is None else log.error))
        yield log


def _run_file(job_file: str, settings: RunSettings, log: LogDisplay | None, output: Output) -> None:
    from penstock.jobs.display import RunDisplay
    from penstock.jobs.job_loader import load_job

    loaded = load_job(job_file)
    # Spark is loaded only now, so that mistakes in the arguments show at once.
    from penstock.jobs.runner import JobRunner

    runner = JobRunner(loaded.job, settings, loaded.code)
    display: RunDisplay | LogDisplay
    if log is None:
        display = RunDisplay(stderr, loaded.job.name)
    else:
        display = log
        log.of(loaded.job.name, runner.job_id)
    # The live display takes standard output to itself, so that lines do not break it; a file is to get them.
    id_to = None if sys.stdout.isatty() else sys.stdout
    for note in runner.notes:
        display.note(f"Note: {note}")
    with display if isinstance(display, RunDisplay) else nullcontext():
        summary = runner.run(
            on_progress=display.update,
            on_note=display.note,
            on_begin=lambda: print(runner.job_id, file=id_to, flush=True),
        )
    if output is Output.json:
        print_json(asdict(summary))
    if output is not Output.json or log is not None:
        display.print_summary(summary)


def _bindings(definitions: Sequence[str] | None) -> dict[str, str]:
    from penstock.bindings.parse import split_definition

    return dict(map(split_definition, definitions or ()))


def _absolute(places: Sequence[str] | None) -> tuple[str, ...]:
    """Places as somebody who is in a folder means them. Links stay, since commands name places by them too."""
    return tuple(
        text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100  # resolve() follows links
        for text in places or ()
    )
