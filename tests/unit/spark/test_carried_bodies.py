"""Carried bodies: what tasks put into files, other tasks of the micro-batch find, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ExternalSystemError
from penstock.runtime.gathered_rows import GatheredRows, in_memory
from penstock.runtime.packed_rows import PackedRow, packed_batches
from penstock.spark import carried_bodies
from penstock.spark.carried_bodies import CarriedBodies, carry_bodies, folder_for_bodies, remove_bodies

SLOTS = np.zeros(8, np.int32)
SMALL, LARGE = b"counted", bytes(range(256)) * 4096


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))
    task = SimpleNamespace(get=lambda: SimpleNamespace(taskAttemptId=lambda: next(numbers)))
    monkeypatch.setattr(carried_bodies, "TaskContext", task)


def rows_of(*bodies: bytes) -> list[PackedRow]:
    return [PackedRow("step", group, 0, "/hits/0", 7, body) for group, body in enumerate(bodies)]


def carried(rows: list[PackedRow], folder: Path) -> list[pa.RecordBatch]:
    return list(carry_bodies(packed_batches(rows, SLOTS), str(folder)))


def bodies_in(batches: list[pa.RecordBatch]) -> Iterator[bytes]:
    return (body.as_py() for batch in batches for body in batch.column("body"))


def arrived(batches: list[pa.RecordBatch], bodies: CarriedBodies) -> list[PackedRow]:
    """What a slot makes of the rows that Spark brings."""
    found = []
    for batch in batches:
        for row in batch.to_pylist():
            values = (
                row[name] for name in ("destination", "key_group", "input", "partition", "first_offset")
            )
            found.append(PackedRow._make((*values, bodies.of(row["body"]))))
    return found


def test_large_bodies_are_in_a_file_and_small_ones_stay(tmp_path: Path) -> None:
    """Spark gets little, and the slot all."""
    rows = rows_of(SMALL, LARGE, LARGE[::-1], SMALL)
    batches = carried(rows, tmp_path)
    assert sum(map(len, bodies_in(batches))) < 1000
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) >= 2 * len(LARGE)
    with CarriedBodies() as bodies, GatheredRows(reversed(arrived(batches, bodies))) as gathered:
        assert list(map(in_memory, gathered.lists["step"])) == rows


def test_a_small_batch_needs_no_file(tmp_path: Path) -> None:
    """A file for a few records would take longer than they do."""
    rows = rows_of(SMALL, SMALL * 10_000)
    batches = carried(rows, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with CarriedBodies() as bodies:
        assert arrived(batches, bodies) == rows


def test_rows_that_differ_in_their_bodies_alone_are_in_order(tmp_path: Path) -> None:
    """Whichever task has written them."""
    rows = [row._replace(key_group=0) for row in rows_of(LARGE + b"b", LARGE + b"a", LARGE + b"c")]
    batches = [batch for row in rows for batch in carried([row], tmp_path)]
    assert len(list(tmp_path.iterdir())) == len(rows)
    with CarriedBodies() as bodies, GatheredRows(arrived(batches, bodies)) as gathered:
        assert list(map(in_memory, gathered.lists["step"])) == sorted(rows)


def test_files_are_removed_after_the_micro_batch(tmp_path: Path) -> None:
    """Also where there is no folder, or none any more."""
    carried(rows_of(LARGE, LARGE), tmp_path)
    remove_bodies(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    remove_bodies("")
    remove_bodies(str(tmp_path / "gone"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(ExternalSystemError, match=r"bodies.*spark\.local\.dir"):
        carried(rows_of(LARGE), tmp_path / "bodies")


@pytest.mark.parametrize("master", ["spark://there:7077", "k8s://there"])
def test_other_machines_have_no_folder_in_common(tmp_path: Path, master: str) -> None:
    """So bodies go through Spark."""
    context = cast("Any", SimpleNamespace(master=master, _temp_dir=str(tmp_path)))
    assert folder_for_bodies(context) == ""
    context.master = "local[2]"
    assert Path(folder_for_bodies(context)).parent == tmp_path
