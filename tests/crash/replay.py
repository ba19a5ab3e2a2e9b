"""Runs one random schedule again and prints what happens: python tests/crash/replay.py SEED [--ops]."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from life import Life
from schedules import live_schedule, schedule


def main() -> int:
    """Print the schedule, its events, and its result."""
    wanted = schedule(int(sys.argv[1]))
    print(f"job {wanted.scenario.job.name}, {wanted.scenario.parallelism} tasks, {wanted.scenario.form}")
    for number, run in enumerate(wanted.scenario.runs):
        print(f"run {number}: {', '.join(map(str, run.actions)) or 'nothing'}")
    if wanted.scenario.topics:
        options = wanted.scenario.topic_options
        print(
            "topics:",
            ", ".join(f"{name} {options.get(name, '')}".strip() for name in sorted(wanted.scenario.topics)),
        )
    for fault in (*wanted.faults, *wanted.refusals):
        print(f"fault: {fault}")
    folder = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    with Life(folder) as life:
        told = live_schedule(life, wanted)
        print("\n".join(told.trace))
        if "--ops" in sys.argv:
            print("\n".join(map(str, life.disk.ops)))
    print(told.outcome.result, *told.outcome.why, sep="\n")
    shutil.rmtree(folder)
    return told.outcome.result != "went on"


if __name__ == "__main__":
    sys.exit(main())
