"""Window aggregates: counts, sums and other aggregates of the records in windows, which penstock computes itself."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.streams.described_stream import KeyedInput
from penstock.streams.step_nodes import distinct_count
from penstock.streams.step_validation import check_number
from penstock.streams.window_options import WindowOptions
from penstock.windows.assigners import WindowAssigner
from penstock.windows.distinct_counts import DEFAULT_ACCURACY
from penstock.windows.field_aggregates import FieldAggregate, FieldStatistics, RecordCount
from penstock.windows.window_functions import Aggregated, WindowContents

__all__ = ["WindowAggregates"]

StepT = TypeVar("StepT")


class WindowAggregates(WindowOptions, Generic[StepT]):
    """The windows of a keyed stream, with methods that add a step of the type `StepT`."""

    def __init__(self, assigner: WindowAssigner, keyed: KeyedInput) -> None:
        super().__init__(assigner)
        self.keyed = keyed

    def count(self, step: str) -> StepT:
        """Count the records of each window. Emits the key fields, `window_start`, `window_end` and `value`, an integer.

        Like `sum`, `min`, `max` and `mean`, it is vectorised if possible: with tumbling, sliding or cumulative windows
        that have their default trigger and no evictor. The others aggregate a field: they ignore null values, `value`
        is a double, and the step's setting `aggregate` switches between count, sum, min, max and mean while the job
        runs.
        """
        return self._step(step, Aggregated(RecordCount()), None)

    def sum(self, step: str, field: str) -> StepT:
        """Sum a numeric field in each window; see `count`."""
        return self._aggregate(step, "sum", field)

    def min(self, step: str, field: str) -> StepT:
        """Emit the smallest value of a numeric field in each window; see `count`."""
        return self._aggregate(step, "min", field)

    def max(self, step: str, field: str) -> StepT:
        """Emit the largest value of a numeric field in each window; see `count`."""
        return self._aggregate(step, "max", field)

    def mean(self, step: str, field: str) -> StepT:
        """Emit the mean of a numeric field in each window; see `count`."""
        return self._aggregate(step, "mean", field)

    def statistics(self, step: str, field: str) -> StepT:
        """Emit the fields `count`, `sum`, `min`, `max` and `mean` of a numeric field in each window; see `count`."""
        check_number(step, "statistics", self.keyed.stream.record_type, field)
        return self._step(step, Aggregated(FieldStatistics(field)), None)

    def approx_count_distinct(self, step: str, field: str, *, accuracy: float = DEFAULT_ACCURACY) -> StepT:
        """Count the distinct values of a field in each window, approximately.

        Emits the fields of the key, `window_start`, `window_end` and `distinct`, an integer. The field holds integers,
        floating-point numbers, text, bytes, booleans, dates or timestamps; null values are not counted. `accuracy` is
        the relative standard error, 0.005 to 0.25: two in three windows are off by less than it, 19 in 20 by less than
        twice it. Up to 1 / accuracy**2 values the count is exact, and a window keeps 8 bytes per value: at most 9 KB
        at 0.03. It is vectorised where `count` is. The step's setting `accuracy` changes it while the job runs.
        """
        aggregate = distinct_count(step, self.keyed.stream, field, accuracy)
        return self._step(step, Aggregated(aggregate), None)

    def _aggregate(self, step: str, aggregate: str, field: str) -> StepT:
        check_number(step, aggregate, self.keyed.stream.record_type, field)
        return self._step(step, Aggregated(FieldAggregate(aggregate, field)), None)

    def _step(self, step: str, contents: WindowContents, output: Any) -> StepT:
        """Add the step."""
        raise NotImplementedError
