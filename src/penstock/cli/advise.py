"""The command line of scaling: `penstock advise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from penstock.cli.output import Output, OutputOption, escape, print_json, stdout
from penstock.cli.target import (
    JobArgument,
    Servers,
    asks_server,
)

if TYPE_CHECKING:
    from penstock.scaling.advice import Advice
    from penstock.scaling.autoscale_decisions import Decision
    from penstock.scaling.policy import ScalingPolicy

__all__ = ["advise"]


@asks_server()
def advise(
    servers: Servers,
    context: typer.Context,
    job: JobArgument,
    window: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="How long before the newest metrics to measure the rate of arriving records.",
        ),
    ] = 600.0,
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Cores for the job's tasks. Default: as in the newest metrics."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A scaling policy to follow; also prints what it would decide now."
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Recommend a parallelism, batch interval and number of cores for a job, and give the reasons. Changes nothing.

    The job need not run: the advice follows from the metrics in its checkpoint. For a job of a server it also follows
    the policy of its definition, if there is one.
    """
    reason = "goes with a checkpoint: the definition of a server's job has it."
    with servers.job(job, context, checkpoint_only={"policy": reason}) as target:
        found = target.advise(window, cores, None if policy is None else _read_policy(policy))
    if output is Output.json:
        content = msgspec.to_builtins(found.advice)
        if found.has_policy:
            content["decision"] = msgspec.to_builtins(found.decision)
        print_json(content)
    else:
        _print_advice(found.advice, found.decision)


def _read_policy(path: Path) -> ScalingPolicy:
    from penstock.errors import JobDefinitionError
    from penstock.scaling.policy import parse_policy

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise JobDefinitionError(f"The scaling policy {path} cannot be read: {e}.") from e
    return parse_policy(text)


def _print_advice(advice: Advice, decision: Decision | None) -> None:
    if advice.measured is not None:
        state = advice.measured
        stdout.print(
            f"{escape(advice.job)}: {state.batches:,} micro-batches in {state.seconds:.0f} s, {state.arriving:,.0f} "
            f"records/s arrive, {state.processed:,.0f} are processed.",
            soft_wrap=True,
        )
    if advice.recommendations:
        table = Table("setting", "now", "wanted")
        for one in advice.recommendations:
            now, wanted = ("?" if value is None else f"{value:,}" for value in (one.now, one.wanted))
            is_changed = one.now is not None and one.now != one.wanted
            table.add_row(one.setting, now, f"[bold]{wanted}[/]" if is_changed else wanted)
        stdout.print(table)
    for one in advice.recommendations:
        cost = f" Cost: {one.cost}" if one.cost else ""
        stdout.print(f"{one.setting}: {escape(one.why + cost)}", soft_wrap=True)
    stdout.print(f"Confidence: {advice.confidence}.")
    for doubt in advice.doubts:
        stdout.print(f"  {escape(doubt)}", soft_wrap=True)
    if decision is not None:
        what = "none" if decision.action == "none" else f"rescale from {decision.before} to {decision.tasks}"
        stdout.print(f"The policy would decide: {what}. {escape(decision.reason)}", soft_wrap=True)
