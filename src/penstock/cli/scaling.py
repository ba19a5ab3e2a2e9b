"""The command line of scaling: `penstock advise`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.table import Table

from penstock.cli.output import Output, OutputOption, errors_as_sentences, escaped, stdout

if TYPE_CHECKING:
    from penstock.jobs.scaling.advising import Advice
    from penstock.jobs.scaling.autoscaling import Decision
    from penstock.jobs.scaling.policy import ScalingPolicy

__all__ = ["advise"]

# For how long before the newest figures older ones tell of skew and of rescales.
_PAST: Final = dt.timedelta(hours=6)


def advise(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="The folder that penstock run --checkpoint was given."),
    ],
    window: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Over how long the rate of what arrives is taken, until the newest figures.",
        ),
    ] = 600.0,
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Cores that the job's tasks have. Default: as in the newest figures."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A scaling policy, to advise by and to say what it would decide now."
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Say which parallelism, batch interval and number of cores a job wants, and why. Changes nothing.

    The job may be running or not; what counts is the figures in its checkpoint.
    """
    with errors_as_sentences():
        from penstock.jobs.checkpoint import Checkpoint
        from penstock.jobs.figures import newest_figures, read_figures
        from penstock.jobs.scaling import advising
        from penstock.jobs.scaling.autoscaling import decide, rescales_of
        from penstock.jobs.scaling.capacity import Bounds
        from penstock.jobs.scaling.policy import DEFAULT_POLICY

        by = DEFAULT_POLICY if policy is None else _policy(policy)
        newest = newest_figures(checkpoint)
        key_groups = Checkpoint(checkpoint.expanduser().absolute()).known_lineage().key_groups
        # Figures have 0 where Spark does not tell.
        bounds = Bounds(key_groups, cores or (newest.cores if newest is not None else 0) or None)
        found = [] if newest is None else list(read_figures(checkpoint, newest.ended - _PAST))
        advice = advising.advise(by, found, bounds, window)
        decision = None
        if policy is not None and newest is not None:
            decision = decide(by, rescales_of(found), found, bounds, newest.ended)
        if output is Output.json:
            told = msgspec.to_builtins(advice)
            if policy is not None:
                told["decision"] = msgspec.to_builtins(decision)
            print(msgspec.json.encode(told).decode())
        else:
            _tell(advice, decision)


def _policy(path: Path) -> ScalingPolicy:
    from penstock.errors import JobDefinitionError
    from penstock.jobs.scaling.policy import parse_policy

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise JobDefinitionError(f"The scaling policy {path} cannot be read: {e}.") from e
    return parse_policy(text)


def _tell(advice: Advice, decision: Decision | None) -> None:
    if advice.measured is not None:
        state = advice.measured
        stdout.print(
            f"{escaped(advice.job)}: {state.batches:,} micro-batches in {state.seconds:.0f} s, {state.arriving:,.0f} "
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
        stdout.print(f"{one.setting}: {escaped(one.why + cost)}", soft_wrap=True)
    stdout.print(f"Confidence: {advice.confidence}.")
    for doubt in advice.doubts:
        stdout.print(f"  {escaped(doubt)}", soft_wrap=True)
    if decision is not None:
        what = "none" if decision.action == "none" else f"rescale from {decision.before} to {decision.tasks}"
        stdout.print(f"The policy would decide: {what}. {escaped(decision.reason)}", soft_wrap=True)
