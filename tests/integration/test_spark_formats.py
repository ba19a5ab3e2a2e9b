"""Streams that Spark loads in any of its formats, once, at the first start of a checkpoint."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration_support import read_lines
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import BindingError, ExternalSystemError


@dataclass
class Counted:
    """The number of rows of a key."""

    key: int
    rows: int
    at: dt.datetime


class Count(ps.ProcessFunction):
    """Counts the rows of a key."""

    rows = ps.ValueState(int)

    def process_record(self, row: Any, ctx: ps.Context) -> Any:
        self.rows.set((self.rows.get() or 0) + 1)
        yield Counted(row.key, self.rows.get(), row.at)


def count_job() -> ps.Job:
    job = ps.Job("count", key_groups=4)
    rows = job.data_stream("rows", schema="key BIGINT NOT NULL, at TIMESTAMP")
    rows.key_by("key").process("count", Count(), output=Counted).sink_to("counts")
    return job


def test_a_stream_is_what_a_format_held_at_the_first_start(
    run_job: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Columns go to fields of the same names, with conversion; a later start loads nothing again."""
    orc = tmp_path / "orc"
    moment = "timestamp'2026-11-25 20:00:00.000123Z'"
    frame = spark.range(5).selectExpr("cast(if(id = 4, null, id % 2) as int) key", f"{moment} at", "1 other")
    frame.coalesce(1).write.orc(str(orc))
    bindings = {"rows": f"spark:orc?path={orc}", "counts": f"jsonl:{tmp_path / 'counts'}"}
    summary = run_job(count_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert summary.records_in["rows"] == 5
    assert summary.dead_letters == 1, "the key of a row is null"
    found = read_lines(tmp_path / "counts")
    assert sorted((one["key"], one["rows"]) for one in found) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    at = dt.datetime(2026, 11, 25, 20, 0, 0, 123, tzinfo=dt.UTC)
    assert {dt.datetime.fromisoformat(one["at"]) for one in found} == {at}
    shutil.rmtree(orc)
    again = run_job(count_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert again.records_in.get("rows", 0) == 0


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("spark:orc?path={away}", "cannot load the format 'orc': .*Path does not exist"),
        ("spark:stone_tablets", "cannot load the format 'stone_tablets': .*--spark spark.jars"),
        ("spark:json?path={rows}", "'rows' needs the fields at, but what the format 'json' loads has key"),
        ("spark:csv?path={rows}&header=env:NO_SUCH_VARIABLE", "no environment variable NO_SUCH_VARIABLE"),
    ],
)
def test_what_spark_cannot_load_is_a_sentence(run_job: Any, tmp_path: Path, uri: str, message: str) -> None:
    """The start fails, for each of the errors."""
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"key": 1}))
    bindings = {
        "rows": uri.format(away=tmp_path / "away", rows=rows),
        "counts": f"jsonl:{tmp_path / 'counts'}",
    }
    with pytest.raises(BindingError, match=message):
        run_job(count_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))


def test_rows_of_an_interrupted_load_do_not_count(run_job: Any, tmp_path: Path) -> None:
    """Files without the note of a complete load are loaded again."""
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"key": 1, "at": "2026-11-25T20:00:00Z"}))
    bindings = {"rows": f"spark:json?path={rows}", "counts": f"jsonl:{tmp_path / 'counts'}"}
    missing = {**bindings, "rows": f"spark:json?path={rows}.missing"}
    with pytest.raises(BindingError):
        run_job(count_job(), missing, checkpoint=str(tmp_path / "first"))
    run_job(count_job(), bindings, checkpoint=str(tmp_path / "first"))
    inputs = tmp_path / "second" / "inputs"
    shutil.copytree(tmp_path / "first" / "inputs" / "rows", inputs / "rows")
    (inputs / "rows" / "0000000001.parquet").write_bytes(b"half of a file")
    run_job(count_job(), bindings, checkpoint=str(tmp_path / "second"))
    assert len(read_lines(tmp_path / "counts")) == 2


def test_a_replay_reads_what_was_loaded(run_job: Any, tmp_path: Path) -> None:
    """A micro-batch that failed at its commit gets the same records again, even if the source has changed."""
    rows, inputs = tmp_path / "rows.json", tmp_path / "checkpoint" / "inputs" / "rows"
    at = {"at": "2026-11-25T20:00:00Z"}
    rows.write_text("".join(json.dumps({"key": key, **at}) + "\n" for key in (1, 1, 2)))
    bindings = {"rows": f"spark:json?path={rows}", "counts": "spark:jdbc?dbtable=counts"}
    with pytest.raises(ExternalSystemError, match="micro-batch 0 in the format 'jdbc'"):
        run_job(count_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    loaded = {path.name: path.read_bytes() for path in inputs.glob("*.parquet")}
    rows.write_text(json.dumps({"key": 7, **at}))
    with pytest.raises(ExternalSystemError):
        run_job(count_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert {path.name: path.read_bytes() for path in inputs.glob("*.parquet")} == loaded
    bindings["counts"] = f"jsonl:{tmp_path / 'counts'}"
    run_job(count_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    found = read_lines(tmp_path / "counts")
    assert sorted((one["key"], one["rows"]) for one in found) == [(1, 1), (1, 2), (2, 1)]
