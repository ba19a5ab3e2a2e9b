"""The command line of single jobs: `penstock run` and `penstock demo`."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, print_json, stderr
from penstock.cli.target import (
    DEFAULT_HOME,
    CaOption,
    HomeOption,
    ServerOption,
    Servers,
    asked_for,
    complete_definitions,
    complete_savepoints,
    given_options,
    refuse_options,
)
from penstock.errors import JobDefinitionError
from penstock.jobs.log_display import LogDisplay

__all__ = ["demo", "run"]

_DETACHED_ONLY: Final = ("name", "restart", "scaling", "continues", "server", "home", "ca")


class LogFormat(StrEnum):
    """How a run tells what happens to it."""

    text = "text"
    json = "json"


class Scaling(StrEnum):
    """What becomes of the scaling policy of a definition."""

    off = "off"
    dry_run = "dry-run"


def run(
    context: typer.Context,
    job_file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:ATTR]",
            help="The job file, and the job's name in it; with --detached a definition of the server.",
            autocompletion=complete_definitions,
        ),
    ],
    detached: Annotated[
        bool, typer.Option("--detached", "-d", help="Let the server run a definition of its own, and return.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --detached: the job's name. Default: the definition's."),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(metavar="STRATEGY", help="With --detached: when it is started again after a failure."),
    ] = None,
    scaling: Annotated[
        Scaling | None,
        typer.Option(help="With --detached: do not heed its scaling policy, or only tell what that decides."),
    ] = None,
    continues: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="With --detached: go on from the checkpoint of a job that is over."),
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("-D", metavar="NAME=URI", help="Bind a stream or sink. May be repeated."),
    ] = None,
    bounded: Annotated[bool, typer.Option("--bounded", help="Process what is there, then finish.")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder that keeps progress and state. Default: none is kept."),
    ] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tasks that share each keyed step. Default: the number of cores."),
    ] = None,
    batch_interval: Annotated[
        int, typer.Option(metavar="MS", help="Least time between micro-batches, in milliseconds.")
    ] = 0,
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]",
    max_command_bytes: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="The largest command that is taken; larger ones are rejected."),
    ] = 1 << 20,
    max_held_bytes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="How much data may wait for paused steps inside the job; beyond it data streams are not read.",
        ),
    ] = 256 << 20,
    state_memory_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=0,
            help="How much state each worker keeps in memory; the rest is on its local disk.",
        ),
    ] = 1024,
    receipts_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=1,
            help="How many receipts the checkpoint keeps; beyond it the oldest go.",
        ),
    ] = 256,
    figures_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=1,
            help="How many figures of micro-batches the checkpoint keeps; beyond it the oldest go.",
        ),
    ] = 32,
    log_mb: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=1,
            help="How much of Spark's log and of what functions print the checkpoint keeps.",
        ),
    ] = 64,
    lock_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="How long to wait for another run that uses the checkpoint to end."
        ),
    ] = 60.0,
    from_savepoint: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Begin with a savepoint, named by id or place, if CHECKPOINT is new.",
            autocompletion=complete_savepoints,
        ),
    ] = None,
    from_dump: Annotated[
        str | None, typer.Option(metavar="URI", help="Begin with a dump, if CHECKPOINT is new.")
    ] = None,
    must_continue: Annotated[
        bool,
        typer.Option(
            "--must-continue", help="Refuse to begin anew: CHECKPOINT must be there, say on a mounted disk."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Put an existing checkpoint aside first, and begin anew.")
    ] = False,
    keep_positions: Annotated[
        bool | None,
        typer.Option(
            "--keep-positions/--no-positions",
            help="Read the streams from where the snapshot stood. Default: for savepoints only.",
            show_default=False,
        ),
    ] = None,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option("--allow-non-restored-state", help="Leave behind the state of steps that are gone."),
    ] = False,
    allow_read: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Let commands have the job read this file or address, and what is below it. May be repeated.",
        ),
    ] = None,
    allow_write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Let commands have the job write dumps below this folder or address. May be repeated.",
        ),
    ] = None,
    new_outputs_from: Annotated[
        int | None,
        typer.Option(
            metavar="BATCH",
            min=0,
            help="Begin the outputs anew with this micro-batch, where sinks are ahead of the checkpoint.",
        ),
    ] = None,
    replan: Annotated[
        int | None,
        typer.Option(
            metavar="BATCH",
            min=0,
            help="Plan this unfinished micro-batch anew, with the bounds that the sources have now.",
        ),
    ] = None,
    metrics_bind: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the job's metrics to Prometheus there, at /metrics."),
    ] = None,
    metrics_allow_remote: Annotated[
        bool,
        typer.Option("--metrics-allow-remote", help="Let others than this machine read the metrics."),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="What is told on stderr: for people, or one JSON object a line."),
    ] = LogFormat.text,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first record that cannot be processed.")
    ] = False,
    server: ServerOption = None,
    home: HomeOption = DEFAULT_HOME,
    ca: CaOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Run a job; with --detached let a server run one, and return at once with its id.

    Exit codes: 0 finished, stopped or submitted, 1 the job failed, 2 wrong use (arguments, bindings, job file,
    checkpoint, or a bad record with --strict), 3 an external system failed, 130 interrupted before the job ran.
    """
    if detached:
        with errors_as_sentences():
            wanted = {
                "name": name,
                "parallelism": parallelism,
                "batch_interval": f"{batch_interval}ms",
                "restart": restart,
                "scaling": None if scaling is None else scaling.value,
                "keep_positions": keep_positions,
                "allow_non_restored_state": allow_non_restored_state,
                "new_outputs_from": new_outputs_from,
                "replan": replan,
                "from_savepoint": from_savepoint,
                "continues": continues,
            }
            _submit(context, Servers(server, home, ca), job_file, wanted, output)
        return
    log = LogDisplay() if log_format is LogFormat.json else None
    with contextlib.ExitStack() as stack:
        if log is not None:
            stack.enter_context(log)
        stack.enter_context(errors_as_sentences(tell=None if log is None else log.error))
        refuse_options(context, _DETACHED_ONLY, "goes with --detached.")
        from penstock.bindings.parse import split_definition
        from penstock.jobs.display import RunDisplay
        from penstock.jobs.job_loader import load_job
        from penstock.jobs.settings import RunSettings

        settings = RunSettings(
            bindings=dict(split_definition(text) for text in define or []),
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
        loaded = load_job(job_file)
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
        with display if isinstance(display, RunDisplay) else contextlib.nullcontext():
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


def _absolute(places: list[str] | None) -> tuple[str, ...]:
    """Places as somebody who is in a folder means them. Links stay, since commands name places by them too."""
    return tuple(
        text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100  # resolve() follows links
        for text in places or []
    )


def _submit(
    context: typer.Context, servers: Servers, definition: str, wanted: dict[str, Any], output: Output
) -> None:
    """Submit a definition, with what was said on the command line of what a client may say."""
    others = {"job_file", "detached", "server", "home", "ca", "output"}
    refuse_options(
        context,
        set(context.params) - others - wanted.keys(),
        "does not go with --detached: the definition has it.",
    )
    given = {name: value for name, value in wanted.items() if name in given_options(context)}
    with servers.asked() as asked:
        from penstock.client.jobs import find_job

        if "continues" in given:
            given["continues"] = find_job(asked, given["continues"])
        known = {one["id"] for one in asked.get("/v1/definitions")["items"]}
        if definition not in known and (Path(definition).exists() or "/" in definition):
            raise JobDefinitionError(
                f"{definition} is a file, and a server takes no code: it runs definitions in its own folders, which "
                f"are: {', '.join(sorted(known)) or 'none'}. Without --detached the file is run here."
            )
        operation = asked.change("POST", "/v1/jobs", {"definition": definition, **given})
        asked_for(asked, operation, output=output)
        if output is Output.text:
            print(operation["job"], flush=True)
            stderr.print(f"Submitted. See penstock info {escaped(operation['job'])}.", soft_wrap=True)


def demo(
    seconds: Annotated[int, typer.Option(metavar="N", min=1, help="How long to run.")] = 60,
    sensors: Annotated[int, typer.Option(metavar="N", min=1, help="How many rooms to simulate.")] = 12,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Use a real Kafka broker, fetched and started here.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Run simulated rooms and the job that keeps them warm, with a live view."""
    with errors_as_sentences():
        from penstock.demo.run import run_demo

        summary = run_demo(seconds=seconds, sensors=sensors, kafka=kafka, json_output=output is Output.json)
        if output is Output.json:
            print_json(asdict(summary))
