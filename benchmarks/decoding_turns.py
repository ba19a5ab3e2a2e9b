"""Turns of decoders: what decodes or reads the same records, in turns in one process, by the time of the processor.

Other work of the machine hardly changes these times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.report import note, print_table

__all__ = ["measure", "print_found"]


def measure(turns: Mapping[str, Callable[[], int]], rows: int, rounds: int) -> dict[str, Any]:
    """Return records per second of each, and the medians of the ratios of the first to the others of a round."""
    first = next(iter(turns))
    runs: list[dict[str, float]] = []
    for number in range(rounds):
        rates = {}
        for name, decode in turns.items():
            begun_s = time.process_time()
            found = decode()
            rates[name] = rows / (time.process_time() - begun_s)
            if found != rows:
                raise SystemExit(f"{name} has decoded {found} of {rows} records.")
        runs.append(rates)
        note(
            f"round {number + 1} of {rounds}: {', '.join(f'{name} {rate:,.0f}/s' for name, rate in rates.items())}"
        )
    return {
        "rows": rows,
        "rows_per_s": {name: statistics.median(run[name] for run in runs) for name in turns},
        "ratio": {
            name: statistics.median(run[first] / run[name] for run in runs) for name in list(turns)[1:]
        },
    }


def print_found(title: str, found: dict[str, Any], who: str = "decoded by", rate: str = "records/s") -> None:
    """Print a table of what `measure` has found."""
    print_table(
        title,
        [who, rate, "penstock beside it"],
        [
            [name, f"{per_s:,.0f}", f"{found['ratio'][name]:.2f}" if name in found["ratio"] else ""]
            for name, per_s in found["rows_per_s"].items()
        ],
        left=(who,),
    )
