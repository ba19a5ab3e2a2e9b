"""The command line of a run in this process: `penstock run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.durations import milliseconds
from penstock.cli.output import (
    Output,
    OutputOption,
    errors_as_sentences,
    print_json,
    stderr,
    takes_options,
)
from penstock.cli.run_options import (
    BATCH_INTERVAL,
    CHECKPOINT_INTERVAL,
    AllowNonRestoredStateOption,
    KeepPositionsOption,
    NewOutputsFromOption,
    ReplanOption,
)

if TYPE_CHECKING:
    from penstock.jobs.job_loader import LoadedJob
    from penstock.jobs.log_display import LogDisplay
    from penstock.jobs.settings import RunSettings

__all__ = ["run", "sql"]


class LogFormat(StrEnum):
    """The form in which a run reports events."""

    text = "text"
    json = "json"


class _Options:
    """The options of a run, by the names of their parameters."""

    define: Annotated[
        list[str] | None,
        typer.Option("-D", metavar="NAME=URI", help="Bind a stream or sink. May be repeated."),
    ] = None
    bounded: Annotated[bool, typer.Option("--bounded", help="Process what is there, then finish.")] = False
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder for progress and state, s3://BUCKET/PREFIX or hdfs://HOST:PORT/PATH. Default: a temporary "
            "folder.",
        ),
    ] = None
    parallelism: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tasks that share each keyed step. Default: the number of cores."),
    ] = None
    batch_interval: Annotated[int, BATCH_INTERVAL] = 0
    checkpoint_interval: Annotated[str, CHECKPOINT_INTERVAL] = "0s"
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]"
    spark: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of Spark, such as spark.jars. May be repeated."),
    ] = None
    max_command_bytes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="The largest command to accept; larger ones are rejected."),
    ] = 1 << 20
    max_model_mb: Annotated[
        int,
        typer.Option(metavar="MB", min=1, help="The largest model to load; larger ones are rejected."),
    ] = 512
    max_held_bytes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="How much data may wait for paused steps inside the job; beyond it the job stops reading data "
            "streams.",
        ),
    ] = 256 << 20
    state_memory_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=0,
            help="How much state each worker keeps in memory; the rest is on its local disk.",
        ),
    ] = 1024
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory", metavar="MB", help="How much memory the job may use in all on this machine."
        ),
    ] = None
    receipts_mb: Annotated[
        int,
        typer.Option(
            metavar="MB", min=1, help="How many receipts the checkpoint keeps; the oldest go first."
        ),
    ] = 256
    metrics_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=1,
            help="How many metrics of micro-batches the checkpoint keeps; the oldest go first.",
        ),
    ] = 32
    log_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=1,
            help="How much of Spark's log and of the output of functions the checkpoint keeps.",
        ),
    ] = 64
    lock_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="How long to wait for another run that uses the checkpoint to end."
        ),
    ] = 60.0
    from_savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Begin with a savepoint, by its id or place, if the checkpoint is new."
        ),
    ] = None
    from_dump: Annotated[
        str | None, typer.Option(metavar="URI", help="Begin with a dump, if the checkpoint is new.")
    ] = None
    must_continue: Annotated[
        bool,
        typer.Option(
            "--must-continue", help="Refuse to begin anew: the checkpoint must exist, say on a mounted disk."
        ),
    ] = False
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move an existing checkpoint aside, and begin anew.")
    ] = False
    keep_positions: KeepPositionsOption = None
    allow_non_restored_state: AllowNonRestoredStateOption = False
    allow_read: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Allow commands to make the job read this file or address, and all below it. May be repeated.",
        ),
    ] = None
    allow_write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Allow commands to make the job write dumps below this folder or address. May be repeated.",
        ),
    ] = None
    new_outputs_from: NewOutputsFromOption = None
    replan: ReplanOption = None
    metrics_bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve the job's metrics to Prometheus at this address, under /metrics."
        ),
    ] = None
    metrics_allow_remote: Annotated[
        bool,
        typer.Option("--metrics-allow-remote", help="Let other machines read the metrics."),
    ] = False
    log_format: Annotated[
        LogFormat,
        typer.Option(help="The form of messages on stderr: for people, or one JSON object a line."),
    ] = LogFormat.text
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first record that cannot be processed.")
    ] = False


@takes_options(_Options)
def run(
    job_file: Annotated[
        str, typer.Argument(metavar="FILE[:ATTR]", help="The job file, and the job's name in it.")
    ],
    output: OutputOption = Output.text,
    **given: Any,
) -> None:
    """Run a job in this process.

    Exit codes: 0 finished or stopped, 1 the job failed, 2 wrong use (arguments, bindings, job file, checkpoint, or a
    bad record with --strict), 3 an external system failed, 130 interrupted before the job ran.
    """
    with _report_errors(given.pop("log_format")) as log, _start_jvm(given):
        from penstock.jobs.job_loader import load_job

        settings = _settings(given)
        _run_loaded(load_job(job_file), settings, log, output)


@takes_options(_Options)
def sql(
    sql_file: Annotated[str, typer.Argument(metavar="FILE", help="The SQL file.")],
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print the steps of the job and their state, and with --bounded, how it takes its input; do not run "
            "it.",
        ),
    ] = False,
    output: OutputOption = Output.text,
    **given: Any,
) -> None:
    """Run the job of a SQL file in this process. What EXPLAIN statements say is printed first.

    Exit codes: as those of penstock run.
    """
    with (
        _report_errors(given.pop("log_format")) as log,
        nullcontext() if explain else _start_jvm(given),
    ):
        settings = _settings(given)
        loaded = _load_sql(sql_file)
        from penstock.sql.explanation import explain as explained

        for text in loaded.explanations if not explain else (explained(loaded.job),):
            print(text, flush=True)
        if settings.bounded and explain:
            from penstock.jobs.bounded_plan import explain_bounded

            print(explain_bounded(loaded.job, settings.bindings), flush=True)
        # A file that only explains is done.
        if not explain and (loaded.job.graph.sinks() or not loaded.explanations):
            _run_loaded(loaded, settings, log, output)


def _load_sql(sql_file: str) -> LoadedJob:
    from penstock.errors import JobDefinitionError
    from penstock.jobs.job_loader import load_job

    if not sql_file.endswith(".sql"):
        raise JobDefinitionError(
            f"{sql_file} is not a SQL file, which ends in .sql. penstock run runs Python files."
        )
    return load_job(sql_file)


def _spark_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise typer.BadParameter(f"{text!r} is not of the form spark.NAME=VALUE.", param_hint="--spark")
    return name, value


def _settings(given: dict[str, Any]) -> RunSettings:
    """Return the settings of a run from its options, most of which have the names of settings."""
    # Loaded only here, so that help and mistakes in the arguments show at once.
    from penstock.bindings.parse import split_definition
    from penstock.jobs.settings import RunSettings

    settings = {
        "bindings": dict(map(split_definition, given.pop("define") or ())),
        "spark_settings": dict(map(_spark_setting, given.pop("spark") or ())),
        "batch_interval_ms": given.pop("batch_interval"),
        "checkpoint_interval_ms": milliseconds(given.pop("checkpoint_interval"), "--checkpoint-interval"),
        "lock_timeout_s": given.pop("lock_timeout"),
        "allow_read": _make_absolute(given.pop("allow_read")),
        "allow_write": _make_absolute(given.pop("allow_write")),
    }
    return RunSettings(**settings, **given)


@contextmanager
def _report_errors(log_format: LogFormat) -> Iterator[LogDisplay | None]:
    """Report errors as sentences, or in the JSON log that this yields."""
    with ExitStack() as stack:
        log = None
        if log_format is LogFormat.json:
            from penstock.jobs.log_display import LogDisplay

            log = stack.enter_context(LogDisplay())
        stack.enter_context(errors_as_sentences(report=None if log is None else log.error))
        yield log


def _start_jvm(given: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Start Spark's JVM for the options of a run, while this process imports what it needs and loads the job."""
    from penstock.jobs.early_jvm import early_jvm

    return early_jvm(
        master=given["master"],
        checkpoint=given["checkpoint"],
        memory_mb=given["memory_mb"],
        checkpoint_interval_ms=milliseconds(given["checkpoint_interval"], "--checkpoint-interval"),
        spark_settings=dict(map(_spark_setting, given["spark"] or ())),
    )


def _run_loaded(loaded: LoadedJob, settings: RunSettings, log: LogDisplay | None, output: Output) -> None:
    from penstock.jobs.display import RunDisplay

    # Spark is loaded only now, so that mistakes in the arguments show at once.
    from penstock.jobs.runner import JobRunner, RunHooks

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
        hooks = RunHooks(
            on_progress=display.update,
            on_note=display.note,
            on_begin=lambda: print(runner.job_id, file=id_to, flush=True),
        )
        summary = runner.run(hooks=hooks)
    if output is Output.json:
        print_json(asdict(summary))
    if output is not Output.json or log is not None:
        display.print_summary(summary)


def _make_absolute(places: Sequence[str] | None) -> tuple[str, ...]:
    """Make places absolute. Symbolic links stay, since commands name places by them too."""
    return tuple(
        text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100  # resolve() follows links
        for text in places or ()
    )
