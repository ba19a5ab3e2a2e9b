"""The benchmarks of formats, in small: each contestant decodes all records, and penstock is not slower by orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.avro import measure_avro
from benchmarks.registered_messages import measure_json, measure_protobuf


@pytest.mark.parametrize("measure", [measure_avro, measure_json, measure_protobuf])
def test_each_contestant_decodes_all_records(measure: Callable[[int, int], dict[str, Any]]) -> None:
    """The bound is far below what is measured, since other tests run at the same time."""
    found = measure(4_000, 2)
    assert found["rows"] == 4_000
    assert len(found["rows_per_s"]) >= 3
    assert min(found["ratio"].values()) > 0.05, found
