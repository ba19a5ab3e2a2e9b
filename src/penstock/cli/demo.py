"""The command line of the demo: `penstock demo`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.output import Output, OutputOption, errors_as_sentences, print_json

__all__ = ["demo"]


@errors_as_sentences()
def demo(
    seconds: Annotated[int, typer.Option(metavar="N", min=1, help="How long to run.")] = 60,
    sensors: Annotated[int, typer.Option(metavar="N", min=1, help="How many rooms to simulate.")] = 12,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Use a real Kafka broker, fetched and started here.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Run simulated rooms and the job that keeps them warm, with a live view."""
    from penstock.demo.demo_run import run_demo

    summary = run_demo(seconds=seconds, sensors=sensors, kafka=kafka, json_output=output is Output.json)
    if output is Output.json:
        print_json(asdict(summary))
