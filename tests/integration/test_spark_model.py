"""The model of Spark in tests/crash writes the same files as Spark."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))

from life import Action, Life, Run
from run_kinds import KINDS, MAIN

from penstock.jobs.runner import JobRunner
from penstock.jobs.settings import RunSettings

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SPARK = ("metadata", ".metadata.crc", "offsets", "commits", "state")


def _names(checkpoint: Path) -> set[str]:
    """Return Spark's file names with ids made equal, without what the model omits: checksums of state, and
    RocksDB tables.
    """
    found = set()
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint).as_posix()
        is_state = re.match(r"state/\d+/\d+/", name) is not None
        if not path.is_file() or name.split("/")[0] not in _SPARK or "/SSTs/" in name:
            continue
        if not (is_state and path.name.startswith(".")):
            found.add(_ID.sub("ID", name))
    return found


def test_the_model_writes_the_files_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """One job with two micro-batches, on Spark and on the model, has files of the same names."""
    kind = KINDS[MAIN]
    action = Action("feed")
    scenario = type(kind)(
        kind.job, (Run((action, action), bounded=True),), {"readings": kind.feed["readings"][:2]},
        options={"readings": "?max_files_per_batch=1"},
    )  # fmt: skip
    with Life(tmp_path / "model") as life:
        life.begin(scenario)
        life.feed("readings")
        life.feed("readings")
        assert life.live().finished
        settings = life.settings(scenario.runs[0])
        ours = _names(life.root / "checkpoint")
    real = tmp_path / "real"
    bindings = {
        "readings": settings.bindings["readings"],
        "totals": f"jsonl:{real}/totals",
    }
    JobRunner(
        kind.job.make(),
        RunSettings(bindings=bindings, bounded=True, checkpoint=f"{real}/checkpoint", parallelism=2),
        code={"crash_jobs.py": Path(__file__).parents[1] / "crash" / "crash_jobs.py"},
    ).run()
    assert _names(real / "checkpoint") == ours
