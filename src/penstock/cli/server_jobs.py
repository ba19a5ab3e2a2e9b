"""The command line of managed jobs: what becomes of jobs that a server runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from penstock.base.sizes import counted, limits_text
from penstock.cli.job_target import Patience
from penstock.cli.outcome import print_outcome
from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, print_json, stderr, stdout
from penstock.cli.target import (
    ManagedJobArgument,
    NoWaitOption,
    Servers,
    TimeoutOption,
    asks_server,
)
from penstock.cli.times import instant_text
from penstock.errors import JobFailedError
from penstock.server.lifecycle.statuses import ENDED, JobStatus

if TYPE_CHECKING:
    from penstock.client.http import Server
    from penstock.server.unserved import UnservedHome

__all__ = ["register_managed"]

_COLOURS: Final = {"RUNNING": "green", "FAILED": "red", "RESTARTING": "yellow", "PAUSED": "cyan"}
_MOST_LOOKS: Final = 20


def register_managed(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("list")(list_jobs)
    for command in (info, cancel, pause, resume, logs):
        app.command()(command)


@asks_server
def list_jobs(
    servers: Servers,
    everything: Annotated[bool, typer.Option("--all", help="Jobs that are over, too.")] = False,
    status: Annotated[
        list[JobStatus] | None,
        typer.Option(metavar="STATUS", help="Only jobs with this status. May be repeated."),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """List the jobs of the server that are not over, newest first; those of its home when no server works."""
    with errors_as_sentences():
        wanted = status or [one for one in JobStatus if everything or one not in ENDED]
        with servers.unserved() as own:
            if own is not None:
                jobs = [msgspec.to_builtins(job) for job in own.jobs(wanted)]
                stderr.print("[yellow]Note:[/] No server works; running jobs go on, and none is restarted.")
            else:
                with servers.asked() as asked:
                    jobs = asked.items("/v1/jobs", status=[one.value for one in wanted])
                    _look_closer(asked, jobs)
        if output is Output.json:
            print_json(jobs)
        elif jobs:
            stdout.print(_table_of(jobs))
        else:
            stderr.print("There is no such job." if status or everything else "No job runs or is to run.")


@asks_server
def info(
    servers: Servers,
    job: ManagedJobArgument,
    output: OutputOption = Output.text,
) -> None:
    """Show a job: what it is and why, its settings, plan, runs and savepoints, and how it is going."""
    with errors_as_sentences(), servers.server_job(job) as target:
        found = target.describe()
        if output is Output.json:
            print_json(found)
        else:
            _tell(found)


@asks_server
def cancel(
    servers: Servers,
    job: ManagedJobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 60.0,
    output: OutputOption = Output.text,
) -> None:
    """End a job at once, in the midst of a micro-batch if need be. Its checkpoint stays as the last one left it.

    A job of a home in which no server works is ended as well.
    """
    with errors_as_sentences():
        with servers.unserved() as own:
            if own is not None:
                _cancel_unserved(own, job, timeout, output)
                return
        _set_desired("CANCELED", "is canceled.", servers, job, Patience(timeout, wait=not no_wait), output)


@asks_server
def pause(
    servers: Servers,
    job: ManagedJobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Let a job have no process until it is resumed. What it has done is kept in its checkpoint."""
    with errors_as_sentences():
        result = "is paused. Let it go on with penstock resume."
        patience = Patience(timeout, wait=not no_wait)
        _set_desired("PAUSED", result, servers, job, patience, output)


@asks_server
def resume(
    servers: Servers,
    job: ManagedJobArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Let a paused job go on from its checkpoint, and wait until it runs."""
    with errors_as_sentences():
        patience = Patience(timeout, wait=not no_wait)
        _set_desired("RUNNING", "runs.", servers, job, patience, output)


def _cancel_unserved(home: UnservedHome, called: str, timeout_s: float, output: Output) -> None:
    from penstock.client.jobs import chosen
    from penstock.jobs.events import user_name

    jobs = [msgspec.to_builtins(job) for job in home.jobs(list(JobStatus))]
    known = {job["id"] for job in jobs}
    job = home.cancel(called if called in known else chosen(jobs, called), user_name(), timeout_s)
    if job.status not in ENDED:
        raise JobFailedError(
            f"The job {job.id} has not ended within {timeout_s:g} s; it is {job.status.value}. The next penstock serve "
            "ends it, or ask again."
        )
    if output is Output.json:
        print_json({"job": job.id, "status": job.status.value})
    else:
        stderr.print(f"The job {escaped(job.id)} is canceled.", soft_wrap=True)


def _set_desired(
    desired: str, result: str, servers: Servers, called: str, patience: Patience, output: Output
) -> None:
    """Say what a job is to be; `result` is printed of it when it is."""
    with servers.server_job(called) as target:
        done = print_outcome(target.set_desired(desired, patience), output)
        if done is not None:
            stderr.print(f"The job {escaped(target.job_id)} {result}", soft_wrap=True)


@asks_server
def logs(
    servers: Servers,
    job: ManagedJobArgument,
    run: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Which run. Default: the newest one.")
    ] = None,
    most_bytes: Annotated[
        int, typer.Option("--bytes", metavar="N", min=1, max=1 << 20, help="How much of its end.")
    ] = 65536,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is printed, until Ctrl-C.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Show what a run of a job has printed. It needs the role operator, since jobs may print anything."""
    with errors_as_sentences(), servers.server_job(job) as target:
        for text in target.log(run, most_bytes, follow=follow):
            if output is Output.json:
                print_json({"run": text["run"], "text": text["text"]})
            else:
                print(text["text"], end="", flush=True)


def _look_closer(server: Server, jobs: list[dict[str, Any]]) -> None:
    """Add how the first running jobs are going, which the list does not tell."""
    for job in [job for job in jobs if job["status"] == "RUNNING"][:_MOST_LOOKS]:
        job["progress"] = server.get(f"/v1/jobs/{job['id']}")["progress"]


def _table_of(jobs: list[dict[str, Any]]) -> Table:
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
            escaped(job["id"]),
            escaped(job["name"]),
            status,
            instant_text(job["since_ms"]),
            f"{job['restarts']:,}",
            rate,
            _waiting(progress),
        )
    return table


def _waiting(progress: dict[str, Any] | None) -> str:
    """What waits in all streams of a job."""
    lag = {} if progress is None else progress.get("lag") or {}
    totals: dict[str, float] = {}
    for amounts in lag.values():
        for unit, amount in (amounts if isinstance(amounts, dict) else {}).items():
            totals[unit] = totals.get(unit, 0) + amount
    shown = [counted(totals[unit], unit) for unit in ("records", "files") if totals.get(unit)]
    return ", ".join(shown) if progress is None or shown else "-"


def _scaling(scaling: dict[str, Any] | None) -> dict[str, str]:
    """How a job is scaled, and what was decided last."""
    if scaling is None:
        return {}
    decision = scaling["decision"]
    last = "nothing was decided yet" if decision is None else decision["reason"]
    return {"scaling": f"{_pairs(scaling['policy']) or 'as by default'}; {last}"}


def _tell(job: dict[str, Any]) -> None:
    started = job["next_start_ms"]
    lines = {
        "id": job["id"],
        "name": job["name"],
        "status": f"{job['status']} since {instant_text(job['since_ms'])}: {job['reason'] or 'as a user wants'}",
        "wanted": job["desired"],
        "definition": job["definition"],
        "submitted": f"{instant_text(job['created_ms'])} by {job['created_by']}",
        "restarts": f"{job['restarts']:,}, by {job['restart']}"
        + ("" if started is None else f"; the next at {instant_text(started)}"),
        "settings": _pairs(
            {k: v for k, v in job["settings"].items() if k != "scaling" and v not in (None, {}, False)}
        ),
        **{f"-D {name}": uri for name, uri in job["bindings"].items()},
        **_scaling(job["scaling"]),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines.items():
        table.add_row(escaped(name), escaped(str(text)))
    stdout.print(table)
    if job["plan"] is not None:
        stdout.print("")
        stdout.print(_table_of_plan(job["plan"]))
        _tell_limits(job["plan"])
        _tell_settings(job["plan"])
    _tell_runs(job["runs"])
    if job["savepoints"]:
        stdout.print(
            "\nsavepoints: " + ", ".join(escaped(one["id"]) for one in job["savepoints"]), soft_wrap=True
        )
    progress = job["progress"]
    if progress is not None:
        told = {
            "micro-batch": progress["batch_id"],
            "records/s": f"{progress.get('rows_per_s', 0):,.0f}",
            "in": _pairs(progress.get("records_in", {})) or "-",
            "out": _pairs(progress.get("records_out", {})) or "-",
            "dead letters": progress.get("dead_letters", 0),
            "waiting": _waiting(progress),
        }
        text = "; ".join(f"{name} {value}" for name, value in told.items())
        stdout.print(f"\n{escaped(text)}", soft_wrap=True)


def _table_of_plan(plan: dict[str, Any]) -> Table:
    """The parts of a job, each behind what it reads."""
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
        table.add_row(*map(escaped, cells))
    return table


def _tell_limits(plan: dict[str, Any]) -> None:
    """How much of each stream goes into a micro-batch at most."""
    limits = {
        node["name"]: limits_text(node["binding"]["limits"])
        for node in plan["nodes"]
        if node["binding"] is not None and node["binding"]["limits"]
    }
    if limits:
        told = "; ".join(f"{name} {text}" for name, text in limits.items())
        stdout.print(f"\nin a micro-batch at most: {escaped(told)}", soft_wrap=True)


def _tell_settings(plan: dict[str, Any]) -> None:
    """The settings of each step, as they are in force."""
    for node in plan["nodes"]:
        if node["settings"]:
            stdout.print(
                f"\nsettings of {escaped(node['name'])}: {escaped(_pairs(node['settings']))}", soft_wrap=True
            )


def _tell_runs(runs: list[dict[str, Any]]) -> None:
    if not runs:
        return
    table = Table("run", "begun (UTC)", "ended (UTC)", "how", box=None, pad_edge=False)
    for run in runs:
        ended = "" if run["ended_ms"] is None else instant_text(run["ended_ms"])
        how = ": ".join(text for text in (run["end_kind"], run["why"]) if text)
        table.add_row(str(run["run"]), instant_text(run["created_ms"]), ended, escaped(how))
    stdout.print("")
    stdout.print(table)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
