"""The command line of managed jobs: `penstock list`, `info`, `cancel`, `pause`, `resume`, `logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from penstock.base.sizes import format_count, format_limits
from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, escape, print_json, stderr, stdout
from penstock.cli.target import (
    ManagedJobArgument,
    NoWaitOption,
    Servers,
    TimeoutOption,
    asks_server,
)
from penstock.cli.times import format_milliseconds
from penstock.errors import JobFailedError
from penstock.server.lifecycle.statuses import ENDED, JobStatus

if TYPE_CHECKING:
    from penstock.client.http import Server
    from penstock.server.unserved import UnservedHome

__all__ = ["cancel", "info", "list_jobs", "logs", "pause", "resume"]

_COLOURS: Final = {"RUNNING": "green", "FAILED": "red", "RESTARTING": "yellow", "PAUSED": "cyan"}
_MAX_LOOKS: Final = 20


@asks_server()
def list_jobs(
    servers: Servers,
    everything: Annotated[bool, typer.Option("--all", help="Include jobs that have ended.")] = False,
    status: Annotated[
        list[JobStatus] | None,
        typer.Option(metavar="STATUS", help="Only jobs with this status. May be repeated."),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """List the jobs of the server that have not ended, newest first; without a server, those of the home."""
    wanted = status or [one for one in JobStatus if everything or one not in ENDED]
    with servers.unserved() as own:
        if own is not None:
            jobs = [msgspec.to_builtins(job) for job in own.jobs(wanted)]
            stderr.print("[yellow]Note:[/] No server is running; jobs continue, but none is restarted.")
        else:
            with servers.connect() as asked:
                jobs = asked.items("/v1/jobs", status=[one.value for one in wanted])
                _add_progress(asked, jobs)
    if output is Output.json:
        print_json(jobs)
    elif jobs:
        stdout.print(_jobs_table(jobs))
    else:
        stderr.print("No such job." if status or everything else "No jobs are running or waiting to run.")


@asks_server()
def info(
    servers: Servers,
    job: ManagedJobArgument,
    output: OutputOption = Output.text,
) -> None:
    """Show a job: status and reason, settings, plan, runs, savepoints, and progress."""
    with servers.server_job(job) as target:
        found = target.describe()
        if output is Output.json:
            print_json(found)
        else:
            _print_job(found)


@asks_server()
def cancel(
    servers: Servers,
    job: ManagedJobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 60.0,
    output: OutputOption = Output.text,
) -> None:
    """End a job at once, even within a micro-batch. Its checkpoint stays as the last micro-batch left it.

    Works without a server too, for a job of the home.
    """
    with servers.unserved() as own:
        if own is not None:
            _cancel_unserved(own, job, timeout, output)
            return
    _set_desired("CANCELED", "is canceled.", servers, job, Patience(timeout, wait=not no_wait), output)


@asks_server()
def pause(
    servers: Servers,
    job: ManagedJobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Stop the process of a job until it is resumed. The checkpoint keeps its progress."""
    result = "is paused. penstock resume starts it again."
    patience = Patience(timeout, wait=not no_wait)
    _set_desired("PAUSED", result, servers, job, patience, output)


@asks_server()
def resume(
    servers: Servers,
    job: ManagedJobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Start a paused job again from its checkpoint, and wait until it runs."""
    patience = Patience(timeout, wait=not no_wait)
    _set_desired("RUNNING", "runs.", servers, job, patience, output)


def _cancel_unserved(home: UnservedHome, called: str, timeout_s: float, output: Output) -> None:
    from penstock.client.jobs import choose_job
    from penstock.jobs.events import user_name

    jobs = [msgspec.to_builtins(job) for job in home.jobs(list(JobStatus))]
    known = {job["id"] for job in jobs}
    job = home.cancel(called if called in known else choose_job(jobs, called), user_name(), timeout_s)
    if job.status not in ENDED:
        raise JobFailedError(
            f"The job {job.id} has not ended within {timeout_s:g} s; it is {job.status.value}. The next penstock serve "
            "ends it; or cancel it again."
        )
    if output is Output.json:
        print_json({"job": job.id, "status": job.status.value})
    else:
        stderr.print(f"The job {escape(job.id)} is canceled.", soft_wrap=True)


def _set_desired(
    desired: str, result: str, servers: Servers, called: str, patience: Patience, output: Output
) -> None:
    """Set the status that a job should have; print `result` once it has it."""
    with servers.server_job(called) as target:
        done = print_outcome(target.set_desired(desired, patience), output)
        if done is not None:
            stderr.print(f"The job {escape(target.job_id)} {result}", soft_wrap=True)


@asks_server()
def logs(
    servers: Servers,
    job: ManagedJobArgument,
    run: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Which run. Default: the newest one.")
    ] = None,
    max_bytes: Annotated[
        int, typer.Option("--bytes", metavar="N", min=1, max=1 << 20, help="How much of the end to show.")
    ] = 65536,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing new output, until Ctrl-C.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Show the output of a run of a job. Needs the role operator, since jobs may print anything."""
    with servers.server_job(job) as target:
        for text in target.log(run, max_bytes, follow=follow):
            if output is Output.json:
                print_json({"run": text["run"], "text": text["text"]})
            else:
                print(text["text"], end="", flush=True)


def _add_progress(server: Server, jobs: list[dict[str, Any]]) -> None:
    """Add the progress of the first running jobs, which the list leaves out."""
    for job in [job for job in jobs if job["status"] == "RUNNING"][:_MAX_LOOKS]:
        job["progress"] = server.get(f"/v1/jobs/{job['id']}")["progress"]


def _jobs_table(jobs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("id", "name"):
        table.add_column(title, overflow="fold")
    for title in ("status", "since (UTC)"):
        table.add_column(title, no_wrap=True)
    for title in ("restarts", "records/s", "waiting"):
        table.add_column(title, justify="right", no_wrap=True)
    for job in jobs:
        progress = job["progress"]
        rate = "" if progress is None else f"{progress.get('rows_per_s', 0):,.0f}"
        status = f"[{_COLOURS.get(job['status'], 'default')}]{job['status']}[/]"
        table.add_row(
            escape(job["id"]),
            escape(job["name"]),
            status,
            format_milliseconds(job["since_ms"]),
            f"{job['restarts']:,}",
            rate,
            _format_lag(progress),
        )
    return table


def _format_lag(progress: dict[str, Any] | None) -> str:
    """Format how much waits in all streams of a job."""
    lag = {} if progress is None else progress.get("lag") or {}
    totals: dict[str, float] = {}
    for amounts in lag.values():
        for unit, amount in (amounts if isinstance(amounts, dict) else {}).items():
            totals[unit] = totals.get(unit, 0) + amount
    shown = [format_count(totals[unit], unit) for unit in ("records", "files") if totals.get(unit)]
    return ", ".join(shown) if progress is None or shown else "-"


def _format_scaling(scaling: dict[str, Any] | None) -> dict[str, str]:
    """Format the scaling policy of a job, and the last decision."""
    if scaling is None:
        return {}
    decision = scaling["decision"]
    last = "no decision yet" if decision is None else decision["reason"]
    return {"scaling": f"{_format_pairs(scaling['policy']) or 'as by default'}; {last}"}


def _print_job(job: dict[str, Any]) -> None:
    started = job["next_start_ms"]
    lines = {
        "id": job["id"],
        "name": job["name"],
        "status": f"{job['status']} since {format_milliseconds(job['since_ms'])}: {job['reason'] or 'as requested'}",
        "wanted": job["desired"],
        "mode": job["mode"] + _format_interval(job["checkpoint_interval_ms"]),
        "definition": job["definition"],
        "submitted": f"{format_milliseconds(job['created_ms'])} by {job['created_by']}",
        "restarts": f"{job['restarts']:,}, by {job['restart']}"
        + ("" if started is None else f"; the next at {format_milliseconds(started)}"),
        "settings": _format_pairs(
            {k: v for k, v in job["settings"].items() if k != "scaling" and v not in (None, {}, False)}
        ),
        **{f"-D {name}": uri for name, uri in job["bindings"].items()},
        **_format_scaling(job["scaling"]),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines.items():
        table.add_row(escape(name), escape(str(text)))
    stdout.print(table)
    if job["plan"] is not None:
        stdout.print("")
        stdout.print(_plan_table(job["plan"]))
        _print_limits(job["plan"])
        _print_settings(job["plan"])
    _print_runs(job["runs"])
    if job["savepoints"]:
        stdout.print(
            "\nsavepoints: " + ", ".join(escape(one["id"]) for one in job["savepoints"]), soft_wrap=True
        )
    progress = job["progress"]
    if progress is not None:
        content = {
            "interval" if job["checkpoint_interval_ms"] else "micro-batch": progress["batch_id"],
            "records/s": f"{progress.get('rows_per_s', 0):,.0f}",
            "in": _format_pairs(progress.get("records_in", {})) or "-",
            "out": _format_pairs(progress.get("records_out", {})) or "-",
            "dead letters": progress.get("dead_letters", 0),
            "waiting": _format_lag(progress),
        }
        text = "; ".join(f"{name} {value}" for name, value in content.items())
        stdout.print(f"\n{escape(text)}", soft_wrap=True)


def _format_interval(interval_ms: int) -> str:
    return f", intervals of {interval_ms / 1000:g} s" if interval_ms else ""


def _plan_table(plan: dict[str, Any]) -> Table:
    """Return a table of the parts of a job, each after those that it reads."""
    names = {node["id"]: node["name"] or node["kind"] for node in plan["nodes"]}
    table = Table(box=None, pad_edge=False)
    for title in ("part", "name", "reads", "key", "states", "commands"):
        table.add_column(title, overflow="fold")
    for node in plan["nodes"]:
        reads = [
            names[edge["source"]] + (f".{edge['output']}" if edge["output"] else "")
            for edge in plan["edges"]
            if edge["target"] == node["id"]
        ]
        binding = node["binding"]
        cells = (
            node["kind"],
            names[node["id"]],
            ", ".join(reads) if reads or binding is None else binding["uri"],
            ", ".join(node["key"]),
            ", ".join(state["name"] for state in node["states"]),
            ", ".join(node["commands"]),
        )
        table.add_row(*map(escape, cells))
    return table


def _print_limits(plan: dict[str, Any]) -> None:
    """Print how much of each stream a micro-batch takes at most."""
    limits = {
        node["name"]: format_limits(node["binding"]["limits"])
        for node in plan["nodes"]
        if node["binding"] is not None and node["binding"]["limits"]
    }
    if limits:
        content = "; ".join(f"{name} {text}" for name, text in limits.items())
        stdout.print(f"\nin a micro-batch at most: {escape(content)}", soft_wrap=True)


def _print_settings(plan: dict[str, Any]) -> None:
    """Print the settings that are in force in each step."""
    for node in plan["nodes"]:
        if node["settings"]:
            stdout.print(
                f"\nsettings of {escape(node['name'])}: {escape(_format_pairs(node['settings']))}",
                soft_wrap=True,
            )


def _print_runs(runs: list[dict[str, Any]]) -> None:
    if not runs:
        return
    table = Table("run", "begun (UTC)", "ended (UTC)", "how", box=None, pad_edge=False)
    for run in runs:
        ended = "" if run["ended_ms"] is None else format_milliseconds(run["ended_ms"])
        how = ": ".join(text for text in (run["end_kind"], run["why"]) if text)
        table.add_row(str(run["run"]), format_milliseconds(run["created_ms"]), ended, escape(how))
    stdout.print("")
    stdout.print(table)


def _format_pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
