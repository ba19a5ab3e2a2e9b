"""The source files in a savepoint: the sources' own, but not Spark's notes of where topics start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from penstock.jobs.restore import _restore_own_files
from penstock.savepoints.source_files import copy_own_files, spark_beginnings
from penstock.savepoints.state_restore import Snapshot
from penstock.snapshots.snapshot_writer import write_file
from penstock.snapshots.stores import open_store

_TOPIC = "sources/readings.topic"
_NOTE = "sources/0/0"


def _checkpoint(folder: Path) -> Path:
    for name in (_TOPIC, _NOTE, "sources/0/.0.crc"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    return folder


def test_a_savepoint_has_no_notes_of_where_topics_begin(tmp_path: Path) -> None:
    """Spark would use them instead of the positions."""
    checkpoint = _checkpoint(tmp_path / "checkpoint")
    copied = copy_own_files(checkpoint, {}, open_store(str(tmp_path / "savepoint")))
    assert [file.path for file in copied] == [_TOPIC]
    assert spark_beginnings(checkpoint) == [checkpoint / "sources" / "0"]
    assert spark_beginnings(tmp_path / "none") == []


def test_those_of_an_earlier_savepoint_are_left_out(tmp_path: Path) -> None:
    """A savepoint that has them is equivalent to one that has not."""
    store = open_store(str(tmp_path / "savepoint"))
    files: list[Any] = [write_file(store, name, b"{}") for name in (_TOPIC, _NOTE)]
    snapshot = SimpleNamespace(manifest=SimpleNamespace(files=files), store=store)
    _restore_own_files(cast("Snapshot", snapshot), tmp_path / "new")
    assert [path.name for path in (tmp_path / "new" / "sources").iterdir()] == ["readings.topic"]
