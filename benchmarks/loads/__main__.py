"""Loads: figures of a job in real time that is idle, small, skewed, large or disturbed; each checks its output.

`idle` and `small` say what a job uses that has nothing or little to do, `start` how soon it answers. `skewed`,
`many_keys` and `large_records` begin with a backlog. `idle_partition`, `slow_function` and `broker_away` say how the
job goes on. With `--checkpoint-interval 0s` all of them run in micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.command import option, run_command
from benchmarks.loads.difficult import broker_away, idle_partition, slow_function
from benchmarks.loads.heavy import large_records, many_keys, skewed
from benchmarks.loads.quiet import idle, small, start
from benchmarks.loads.setting import Figures, LoadError, Setting
from benchmarks.processes import ContestantError
from benchmarks.report import note, print_markdown
from benchmarks.topics import broker_or_own
from penstock.machine.kafka_broker import KafkaBroker

__all__ = ["LOADS", "Sizes", "main", "measure"]

LOADS: Final[dict[str, Callable[[Setting], Figures]]] = {
    "idle": idle,
    "small": small,
    "start": start,
    "skewed": skewed,
    "many_keys": many_keys,
    "large_records": large_records,
    "idle_partition": idle_partition,
    "slow_function": slow_function,
    "broker_away": broker_away,
}
_SMALL_SECONDS: Final = 5.0
_SMALL_SCALE: Final = 0.05


@dataclass(frozen=True)
class Sizes:
    """Which loads run, and how long those last that last for a time."""

    loads: Sequence[str] = option(tuple(LOADS), "which loads run; default: all", choices=tuple(LOADS))
    seconds: float = option(60.0, "how long idle, small, disturbed and slow ones last; default: %(default)s")
    checkpoint_interval: str = option("5s", "the interval of real time; 0s: micro-batches")
    partitions: int = 2
    cores: int = 2
    memory_mb: int | None = option(None, "what the job may use in all; default: as it likes")


def measure(
    sizes: Sizes, work: Path, *, small: bool = False, broker: KafkaBroker | None = None
) -> dict[str, Any]:
    """Run the loads one after the other, on the given broker or a new one. Topics are named after the folder.

    A load that fails has `failed`, which says why, in place of figures; the others run all the same.
    """
    found: dict[str, Figures] = {}
    with broker_or_own(broker) as kafka:
        for name in sizes.loads:
            setting = Setting(
                kafka,
                work,
                name,
                sizes.checkpoint_interval,
                _SMALL_SECONDS if small else sizes.seconds,
                _SMALL_SCALE if small else 1.0,
                sizes.partitions,
                sizes.cores,
                sizes.memory_mb,
            )
            try:
                found[name] = LOADS[name](setting)
            except (LoadError, ContestantError, RuntimeError) as error:
                found[name] = {"failed": str(error)}
            note(f"{name}: {found[name]}")
    return {"checkpoint_interval": sizes.checkpoint_interval, "loads": found}


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    columns = ("load", "figures")
    rows = [
        [name.replace("_", " "), ", ".join(f"{label} {_text(value)}" for label, value in figures.items())]
        for name, figures in result["loads"].items()
    ]
    print_markdown(f"Loads, checkpoint interval {result['checkpoint_interval']}", columns, rows, left=columns)


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value).splitlines()[-1]


def main() -> None:
    """Measure, print a table, and with -o json the result as the last line."""
    flags = {"small": "5 s, and a twentieth of the records"}
    result = run_command(Sizes, measure, show, flags)
    failed = [name for name, figures in result["loads"].items() if "failed" in figures]
    if failed:
        raise SystemExit(f"These loads failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
