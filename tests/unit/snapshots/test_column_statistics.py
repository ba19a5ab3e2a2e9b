"""Column statistics are those of NumPy, in any format and however a table is divided into files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from snapshot_support import SETTINGS, setting, write_snapshot

from penstock.snapshots import column_statistics
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


def compared(folder: Path, before: list[float], after: list[float]) -> Any:
    for name, numbers in (("a", before), ("b", after)):
        rows = [setting(f"k{place}", number, "x") for place, number in enumerate(numbers)]
        write_snapshot(str(folder / name), [(SETTINGS, rows)], parts=2)
    (found,) = statistics_of(str(folder / "a"), str(folder / "b"), [SETTINGS.name])
    return {one.name: one for one in found.compared}.get("value.temperature")


@given(
    st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30),
    st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30),
)
@examples(20)
def test_the_largest_difference_of_shares_is_found(before: list[float], after: list[float]) -> None:
    """As its definition says; the bars have all numbers of both."""
    with tempfile.TemporaryDirectory() as folder:
        found = compared(Path(folder), before, after)
    shares = [
        [sum(number <= bound for number in side) / len(side) for bound in range(-5, 6)]
        for side in (before, after)
    ]
    assert found.kolmogorov_smirnov == pytest.approx(max(abs(a - b) for a, b in zip(*shares, strict=True)))
    assert (sum(found.before), sum(found.after)) == (len(before), len(after))
    assert len(found.before) == len(found.after)


def test_a_shift_is_told_from_chance(tmp_path: Path) -> None:
    """The stability index of numbers of the same kind is small, and that of others large; quantiles are NumPy's."""
    random = np.random.default_rng(1)
    before, same, other = random.normal(size=2000), random.normal(size=2000), random.normal(1, 1, size=2000)
    assert compared(tmp_path / "same", before.tolist(), same.tolist()).stability_index < 0.05
    moved = compared(tmp_path / "other", before.tolist(), other.tolist())
    assert moved.stability_index > 0.5
    assert moved.kolmogorov_smirnov > 0.3
    (found,) = statistics_of(str(tmp_path / "other/a"), str(tmp_path / "other/b"), [SETTINGS.name])
    (column,) = [one for one in found.before if one.name == "value.temperature"]
    wanted = np.quantile(before, (0.05, 0.25, 0.5, 0.75, 0.95))
    assert [column.q05, column.q25, column.q50, column.q75, column.q95] == pytest.approx(wanted.tolist())


def test_of_many_numbers_a_share_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly, however they come, so that memory has a limit."""
    monkeypatch.setattr(column_statistics, "_MOST_KEPT", 100)
    numbers = np.arange(5000.0)
    found = compared(tmp_path, numbers.tolist(), (numbers + 2500).tolist())
    assert 25 <= sum(found.before) <= 100
    assert found.kolmogorov_smirnov == pytest.approx(0.5, abs=0.03)


def test_without_numbers_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """In one of the snapshots."""
    assert compared(tmp_path, [1.0], []) is None
