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
    mqtt: Annotated[
        bool,
        typer.Option(
            "--mqtt", help="Use Mosquitto, RabbitMQ and PostgreSQL, installed and started here (Debian)."
        ),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Run simulated rooms and the job that keeps them warm, with a live view."""
    from penstock.demo.demo_run import Place, run_demo

    if kafka and mqtt:
        raise typer.BadParameter("--kafka and --mqtt exclude each other. Leave one out.")
    place: Place = "kafka" if kafka else "mqtt" if mqtt else "folders"
    summary = run_demo(seconds=seconds, sensors=sensors, place=place, json_output=output is Output.json)
    if output is Output.json:
        print_json(asdict(summary))
