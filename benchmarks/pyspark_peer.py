"""The peer: the temperature-control logic on PySpark's own transformWithState, written as its documentation shows.

Settings and readings come in one union, grouped by sensor; two value states hold the setting and the last command. Each
state is read at most once and written at most once for a key in a micro-batch, since every state call is a round trip
between the worker and the JVM. This is not a benchmark by itself: `benchmarks.keyed_state` starts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peer_query import run_query

__all__ = ["main"]

_READING: Final = "sensor_id BIGINT, temperature DOUBLE"
_SETTING: Final = "sensor_id BIGINT, desired DOUBLE, up_delta DOUBLE, down_delta DOUBLE"
_COMMAND: Final = "sensor_id BIGINT, command STRING"


class Thermostat(StatefulProcessor):
    """The thermostat, for rows (`transformWithState`)."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self.setting = handle.getValueState("setting", "desired DOUBLE, up_delta DOUBLE, down_delta DOUBLE")
        self.last_command = handle.getValueState("last_command", "command STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """All rows of one sensor in a micro-batch."""
        for command in self.commands([(r.temperature, r.desired, r.up_delta, r.down_delta) for r in rows]):
            yield Row(sensor_id=key[0], command=command)

    def commands(self, rows: Iterable[tuple[Any, Any, Any, Any]]) -> Iterator[str]:
        """Yield the resulting commands, with settings applied first."""
        readings, setting = [], None
        for temperature, desired, up_delta, down_delta in rows:
            if temperature is None:
                setting = (desired, up_delta, down_delta)
            else:
                readings.append(temperature)
        if setting is not None:
            self.setting.update(setting)
        elif readings:
            setting = self.setting.get()
        if not readings or setting is None:
            return
        desired, up_delta, down_delta = setting
        stored = self.last_command.get()
        before = last = None if stored is None else stored[0]
        for temperature in readings:
            if temperature > desired + up_delta:
                command = "OFF"
            elif temperature < desired - down_delta:
                command = "ON"
            else:
                continue
            if command != last:
                last = command
                yield command
        if last != before:
            self.last_command.update((last,))

    def close(self) -> None:
        """Do nothing."""


class PandasThermostat(Thermostat):
    """The thermostat, for pandas frames (`transformWithStateInPandas`)."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
        """All rows of one sensor in a micro-batch."""
        frame = pd.concat(list(rows))
        columns = [frame[name].tolist() for name in ("temperature", "desired", "up_delta", "down_delta")]
        # Pandas has NaN where Spark has null.
        columns[0] = [None if value != value else value for value in columns[0]]
        commands = list(self.commands(zip(*columns, strict=True)))
        if commands:
            yield pd.DataFrame({"sensor_id": [key[0]] * len(commands), "command": commands})


def _commands(spark: SparkSession, data: Path, mode: str) -> DataFrame:
    def stream(name: str, schema: str) -> DataFrame:
        # Spark reads the files in the order of their modification times.
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(data / name))

    readings = stream("readings", _READING).selectExpr(
        "sensor_id",
        "temperature",
        *(f"CAST(NULL AS DOUBLE) {n}" for n in ("desired", "up_delta", "down_delta")),
    )
    settings = stream("settings", _SETTING).selectExpr(
        "sensor_id", "CAST(NULL AS DOUBLE) temperature", "desired", "up_delta", "down_delta"
    )
    grouped = readings.unionByName(settings).groupBy("sensor_id")
    if mode == "pandas":
        return grouped.transformWithStateInPandas(PandasThermostat(), _COMMAND, "Append", "None")
    return grouped.transformWithState(Thermostat(), _COMMAND, "Append", "None")


def main() -> None:
    """Run the peer on a folder with `readings` and `settings`."""
    run_query(__doc__, ("row", "pandas"), _commands)


if __name__ == "__main__":
    main()
