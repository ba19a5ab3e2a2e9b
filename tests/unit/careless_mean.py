"""An aggregate function that changes the accumulator it is given, as careless code does."""

from __future__ import annotations

from dataclasses import dataclass, field

import penstock as ps

__all__ = ["Mean", "MeanOf"]


@dataclass
class Mean:
    total: float = 0.0
    count: int = 0
    last: list[float] = field(default_factory=list)


class MeanOf(ps.AggregateFunction[float, Mean, float]):
    """The mean of numbers; 0 of none."""

    def create_accumulator(self) -> Mean:
        return Mean()

    def add(self, value: float, accumulator: Mean) -> Mean:
        accumulator.total += value
        accumulator.count += 1
        accumulator.last.append(value)
        return accumulator

    def get_result(self, accumulator: Mean) -> float:
        return accumulator.total / (accumulator.count or 1)
