"""Results of suites that inject faults, as lines of JSON, and the page RELIABILITY.md made from them.

Any test may call `note_result`, or do its work within `noting`, which calls it; both write when PENSTOCK_CHAOS_RESULTS
names a folder. `make reliability` renders the page.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PAGE", "RESULTS", "Injected", "note_result", "noting", "rendered", "results_in", "soaked_in"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "chaos"
PAGE = ROOT / "RELIABILITY.md"
_ENDING = ".results.jsonl"

_HEAD = """# Reliability

This page lists the faults that tests have injected into penstock, how often, and with what result.
`make reliability` generates it from the results in [docs/chaos](docs/chaos), which `make chaos`
writes. [docs/guarantees.md](docs/guarantees.md) states what must hold.

A violation is a missing, doubled or wrong output, receipt or state, a job that does not recover, or
a refusal without a remedy. Random schedules follow from their seeds:
`python tests/crash/replay.py SEED` repeats one.
"""


def note_result(
    suite: str,
    fault: str,
    count: int,
    violations: int,
    arguments: str,
    seeds: str = "",
    folder: Path | None = None,
) -> None:
    """Add what came of a fault that was injected so often.

    `arguments` are those of `make chaos` that do it again; `seeds` are the seeds, where there are any.
    """
    named = os.environ.get("PENSTOCK_CHAOS_RESULTS")
    folder = folder or (Path(named) if named else None)
    if folder is None:
        return
    row = {
        "suite": suite,
        "fault": fault,
        "count": count,
        "violations": violations,
        "seeds": seeds,
        "command": f"make chaos ARGS='{arguments}'",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    with (folder / f"{suite.replace(' ', '_')}{_ENDING}").open("a") as file:
        file.write(json.dumps(row) + "\n")


class Injected:
    """The faults that a test has injected so far."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.last = "none"

    def add(self, fault: str, count: int = 1) -> None:
        """Count a fault, when it is injected."""
        self.counts[fault] = self.counts.get(fault, 0) + count
        self.last = fault


@contextmanager
def noting(suite: str, arguments: str, seeds: str = "", folder: Path | None = None) -> Iterator[Injected]:
    """Note the faults that are injected within a block, which raises when it finds a violation.

    A violation counts for the fault that was injected last; the block ends with the first one.
    """
    injected = Injected()
    violated = True
    try:
        yield injected
        violated = False
    except (pytest.skip.Exception, KeyboardInterrupt):
        # It was not done, and so shows nothing.
        injected.counts.clear()
        raise
    finally:
        for fault, count in injected.counts.items():
            bad = int(violated and fault == injected.last)
            note_result(suite, fault, count, bad, arguments, seeds, folder)


def results_in(folder: Path) -> list[dict[str, Any]]:
    """All results of a folder; of equal ones (suite, fault, seeds, command) the newest."""
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob(f"*{_ENDING}")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[row["suite"], row["fault"], row["seeds"], row["command"]] = row
    return list(found.values())


def soaked_in(folder: Path) -> dict[str, Any] | None:
    """What `make soak` has measured last, None when that is not in the folder."""
    path = folder / "soak.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def rendered(results: list[dict[str, Any]], soak: dict[str, Any] | None = None) -> str:
    """The page. `soak` is what `make soak` has measured last."""
    parts = [_HEAD, *([] if soak is None else _soak_lines(soak))]
    for suite in sorted({row["suite"] for row in results}):
        rows = [row for row in results if row["suite"] == suite]
        commands = sorted({row["command"] for row in rows})
        parts.append(f"## {suite[0].upper()}{suite[1:]}\n")
        parts.append("".join(f"    {command}\n" for command in commands))
        parts.append("| fault | injected | violations | seeds | last run |\n|---|---|---|---|---|")
        by_fault: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_fault.setdefault(row["fault"], []).append(row)
        for fault, found in sorted(by_fault.items()):
            count, bad = (sum(row[name] for row in found) for name in ("count", "violations"))
            seeds = _seeds([row["seeds"] for row in found if row["seeds"]])
            parts.append(f"| {fault} | {count:,} | {bad} | {seeds} | {max(row['date'] for row in found)} |")
        parts.append("")
    return "\n".join(parts)


def _soak_lines(soak: dict[str, Any]) -> list[str]:
    """What a job used in the second and in the last tenth of its time."""
    rows = [
        f"| {name} | {soak['early'][key]:,.1f} | {soak['late'][key]:,.1f} | {soak['growth_percent'][key]:+.1f} % |"
        for key, name in soak["units"].items()
    ]
    return [
        "## Growth\n",
        "    make soak ARGS=--json | tail -1 > docs/chaos/soak.json\n",
        (
            f"A job ran for {soak['seconds']:,} s: {soak['batches']:,} micro-batches, {soak['records']:,} records\n"
            f"and {soak['commands']:,} commands, each applied before the next was sent. Figures are medians. Since\n"
            "the machine's speed varies, the growth of a time is relative to that of a fixed piece of work:\n"
        ),
        "| | second tenth | last tenth | growth |\n|---|---|---|---|",
        *rows,
        "",
    ]


def _seeds(found: list[str]) -> str:
    """Seeds of several rows as one stretch."""
    numbers = {int(word) for text in found for word in text.split(" to ")}
    if not numbers:
        return ""
    return f"{min(numbers)} to {max(numbers)}" if len(numbers) > 1 else str(min(numbers))


if __name__ == "__main__":
    PAGE.write_text(rendered(results_in(RESULTS), soaked_in(RESULTS)))
