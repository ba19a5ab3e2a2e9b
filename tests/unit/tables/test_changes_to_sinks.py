"""Changes at sinks: as upsert messages by key, and as the table that a test reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.operators.record_blocks import Records
from penstock.records.schemas import record_type
from penstock.records.wire_formats import format_of
from penstock.sinks.message_sizes import oversized
from penstock.tables.changes import changelog_type, row_type
from penstock.tables.upserts import LastChanges, UpsertEncoder
from penstock.testing import JobHarness, table_of

ROWS = record_type("town STRING, floor INT, n INT")
CHANGES = changelog_type(ROWS)


def records(*changes: tuple[Any, ...]) -> Records:
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(CHANGES.field_names, change, strict=True)) for change in changes], schema=CHANGES.schema
    )
    return Records(batch, "s", "p", pa.array(np.arange(len(changes))))


@pytest.mark.parametrize(
    ("key", "keys"), [(("town",), [b"b", b"a"]), (("town", "floor"), [b'["b",1]', b'["a",null]'])]
)
def test_the_last_change_of_each_key_is_a_message(key: tuple[str, ...], keys: list[bytes]) -> None:
    """It has the row without the kind, or no body if the row is deleted; this holds before an incomplete
    update, too.
    """
    given = records(("a", None, 1, "+I"), ("b", 1, 5, "-U"), ("b", 1, 6, "+U"), ("a", None, 1, "-U"))
    found = LastChanges(CHANGES, key).of(given)
    assert found.message_keys is not None
    assert found.message_keys.to_pylist() == keys
    assert found.offsets.to_pylist() == [2, 3]
    rows = row_type(CHANGES)
    values = UpsertEncoder(format_of("json", rows), rows).encode(found.batch)
    assert values.to_pylist() == [b'{"town":"b","floor":1,"n":6}', None]
    assert oversized(values, found.message_keys, 200) == {}
    assert list(oversized(values, found.message_keys, 10)) == [0, 1]


def test_a_step_whose_changes_are_only_upserts_leaves_out_the_rows_before() -> None:
    """Other readers get the previous rows."""
    kinds = {}
    for sinks in (("upserts",), ("upserts", "records")):
        job = ps.Job("counts")
        counts = job.data_stream("doors", schema="door STRING").group_by("door")
        table = counts.aggregate("counts", {"n": ps.Aggregate.count()})
        for name in sinks:
            table.sink_to(name, changes=name)  # type: ignore[arg-type]  # it is one of them
        run = JobHarness(job, strict=True)
        for _ in range(2):
            run.send("doors", {"door": "a"})
            outcome = run.run_batch()
        kinds[sinks] = {name: [record._change.value for record in outcome.output(name)] for name in sinks}
        (step,) = run.runner.plan.graph.steps()
        assert run.runner.plan.core(step).only_after == (len(sinks) == 1)
    assert kinds == {
        ("upserts",): {"upserts": ["+U"]},
        ("upserts", "records"): {"upserts": ["+U"], "records": ["-U", "+U"]},
    }


def test_a_table_refuses_what_it_does_not_have() -> None:
    """A removed row must exist, and a record must be a change."""
    made = CHANGES.objects(
        records(("a", 1, 1, "+I"), ("b", 1, 1, "+I"), ("a", 1, 1, "-U"), ("a", 1, 2, "+U")).batch
    )
    assert table_of(made) == [("a", 1, 2), ("b", 1, 1)]
    with pytest.raises(ValueError, match="which is not in the table"):
        table_of(made[2:])
    with pytest.raises(ValueError, match="is not a change"):
        table_of(ROWS.objects(records(("a", 1, 1, "+I")).batch))
