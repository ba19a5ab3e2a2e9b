"""Column statistics are those of NumPy, in any format and however a table is divided into files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from snapshot_support import SETTINGS, setting, write_snapshot

from penstock.snapshots.column_statistics import statistics_of
from penstock.snapshots.table_formats import FORMATS

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=12)


@given(NUMBERS, NUMBERS, st.sampled_from(FORMATS), st.integers(1, 3))
@examples(20)
def test_statistics_are_those_of_all_numbers(
    a: list[float], b: list[float], file_format: str, parts: int
) -> None:
    """Of each snapshot for itself."""
    with tempfile.TemporaryDirectory() as folder:
        for name, numbers in (("a", a), ("b", b)):
            rows = [setting(f"k{place}", number, "x") for place, number in enumerate(numbers)]
            write_snapshot(f"{folder}/{name}", [(SETTINGS, rows)], file_format=file_format, parts=parts)
        (found,) = statistics_of(f"{folder}/a", f"{folder}/b", [SETTINGS.name])
    for numbers, columns in ((a, found.before), (b, found.after)):
        column = {one.name: one for one in columns}["value.temperature"]
        assert (column.values, column.missing) == (len(numbers), 0)
        if numbers:
            expected = [min(numbers), float(np.mean(numbers)), float(np.std(numbers)), max(numbers)]
            measured = [column.least, column.mean, column.deviation, column.greatest]
            assert measured == pytest.approx(expected, abs=1e-6)
        else:
            assert column.mean is None


def test_what_is_no_number_is_missing(tmp_path: Path) -> None:
    """Values that are not finite; text has no statistics."""
    rows = [setting("a", 1.0, "x"), setting("b", float("nan"), "y"), setting("c", float("inf"), "z")]
    for name in "ab":
        write_snapshot(str(tmp_path / name), [(SETTINGS, rows)])
    (found,) = statistics_of(str(tmp_path / "a"), str(tmp_path / "b"), [SETTINGS.name])
    (column,) = [one for one in found.before if one.name == "value.temperature"]
    assert (column.values, column.missing, column.greatest) == (1, 2, 1.0)
    assert "value.mode" not in [one.name for one in found.before]
