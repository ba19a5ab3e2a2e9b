"""Sinks that are Spark formats: each micro-batch is appended, optionally with its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.bindings.parse import parse_binding
from penstock.bindings.types import SparkBinding
from penstock.errors import BindingError, ExternalSystemError
from penstock.records.schemas import record_type
from penstock.sinks.base import TaskContext
from penstock.spark.format_sink import FormatSink
from penstock.testing.connectors.standing_worker import write_block

RECORDS = record_type("id BIGINT NOT NULL, value STRING NOT NULL")


def keep_job() -> ps.Job:
    job = ps.Job("keep")
    job.data_stream("rows", schema="id BIGINT NOT NULL, value STRING NOT NULL").sink_to("kept")
    return job


def opened(uri: str, folder: Path, lineage: str = "lineage") -> FormatSink:
    """Return the sink of a URI, prepared as by a driver."""
    binding = parse_binding("kept", uri, "sink")
    assert isinstance(binding, SparkBinding)
    sink = FormatSink(binding, RECORDS)
    sink.prepare(lineage, str(folder))
    return sink


def written(sink: FormatSink, batch_id: int, ids: list[int]) -> bytes:
    """Write records in a task; return its message."""
    task = sink.task(TaskContext(batch_id, 0, 0, "lineage"), RECORDS)
    write_block(task, RECORDS, 0, ids, [f"v{number}" for number in ids])
    return task.finish()


def test_a_job_appends_its_micro_batches(run_job: Any, spark: SparkSession, tmp_path: Path) -> None:
    """Two runs append; rows have the number of their micro-batch, and a failing format ends the run."""
    rows, orc = tmp_path / "rows", tmp_path / "orc"
    rows.mkdir()
    bindings = {"rows": f"jsonl:{rows}", "kept": f"spark:orc?path={orc}&batch_field=batch"}
    for number in range(2):
        (rows / f"{number}.jsonl").write_text(json.dumps({"id": number, "value": "é"}) + "\n")
        run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    found = spark.read.orc(str(orc)).orderBy("id").collect()
    assert [(row.id, row.value) for row in found] == [(0, "é"), (1, "é")]
    assert found[0].batch < found[1].batch
    assert not list((tmp_path / "checkpoint" / "format-sinks" / "kept").glob("*.parquet"))
    planned = {path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")}
    (rows / "2.jsonl").write_text(json.dumps({"id": 2, "value": "c"}) + "\n")
    bindings["kept"] = "spark:stone_tablets"
    with pytest.raises(BindingError, match="'kept': Spark has no format 'stone_tablets'"):
        run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))
    assert {path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")} == planned
    bindings["kept"] = "spark:jdbc?dbtable=kept"
    with pytest.raises(ExternalSystemError, match=r"micro-batch \d+ in the format 'jdbc'"):
        run_job(keep_job(), bindings, checkpoint=str(tmp_path / "checkpoint"))


def test_a_repeated_commit_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint records what is written; another lineage starts anew, and files of failed tasks are
    removed.
    """
    target = tmp_path / "json"
    uri = f"spark:json?path={target}"
    sink = opened(uri, tmp_path)
    written(sink, 0, [7])
    sink.commit(0, [written(sink, 0, [1, 2])])
    again = opened(uri, tmp_path)
    again.commit(0, [written(again, 0, [1, 2])])
    again.commit(1, [b"", written(again, 1, [3])])
    assert sorted(row.id for row in spark.read.json(str(target)).collect()) == [1, 2, 3]
    other = opened(uri, tmp_path, "other")
    other.commit(0, [written(other, 0, [4])])
    assert sorted(row.id for row in spark.read.json(str(target)).collect()) == [1, 2, 3, 4]


def test_the_column_of_the_batch_must_be_new(tmp_path: Path) -> None:
    """Otherwise it would hide a field."""
    with pytest.raises(BindingError, match="batch_field=id is a field of its records"):
        opened(f"spark:json?path={tmp_path}&batch_field=id", tmp_path)
