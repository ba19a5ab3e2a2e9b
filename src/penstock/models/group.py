"""Group: several models that score the same records, one of whose scores counts."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from penstock.base.durations import Duration, milliseconds
from penstock.errors import SchemaError, StateError
from penstock.models.model import BatchPlace, Model, RecordPlace
from penstock.models.scores import Score, Scores

__all__ = ["Decide", "ModelGroup"]

Decide: TypeAlias = Literal["best", "vote", "first"]


class ModelGroup:
    """Several models of a step that all score, and a rule that decides between their scores.

    Declare it in the body of a process function, after its models:

    >>> class ScoreFraud(ProcessFunction):
    ...     deep = Model("deep", inputs="amount DOUBLE, age DOUBLE", output="score DOUBLE")
    ...     quick = Model("quick", inputs="amount DOUBLE", output="score DOUBLE", default=0.0)
    ...     fraud = ModelGroup(deep, quick, decide="best", deadline="20ms")
    ...     def process_batch(self, records, ctx):
    ...         scores = self.fraud.predict(records, ctx)
    ...         every = np.arange(len(records))
    ...         return ctx.select(every, "card", score=scores.values, version=scores.versions)

    Each record has the score of one model, or of those that voted, and its `version` says which: `deep/3`. A model
    without a score for a record, since no version serves or all fail, is left out for it.

    Args:
        models: at least two models with the same output, in the order of their quality, best first.
        decide: `best` takes the score of the first model in their order. `vote` takes the median of numbers, and of
            other values the most frequent; of equally frequent ones, that of the better model. `first` takes the
            score that arrived first.
        deadline: how long to wait for the answers to a batch or record. Those that come later count as late, and if
            none is there, the next one is taken. Without a deadline, all are waited for.

    """

    def __init__(self, *models: Model, decide: Decide = "best", deadline: Duration | None = None) -> None:
        self.name = ""
        self.models: Final = models
        self.decide: Final = decide
        self.deadline_s: Final = (
            None if deadline is None else milliseconds(deadline, "The deadline of a group", min_ms=1) / 1000
        )

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def is_timed(self) -> bool:
        """Whether time decides: the choice must then be kept for replays."""
        return self.decide == "first" or self.deadline_s is not None

    def check(self) -> None:
        """Raise SchemaError unless it has several models with the same output, and a known way to decide."""
        if len(self.models) < 2 or len({one.model for one in self.models}) < len(self.models):
            raise SchemaError(f"the group {self.name!r} needs at least two different models")
        if self.decide not in ("best", "vote", "first"):
            raise SchemaError(
                f"the group {self.name!r} decides by {self.decide!r}; give 'best', 'vote' or 'first'"
            )
        outputs = self.models[0].spec.outputs
        other = next((one for one in self.models if one.spec.outputs != outputs), None)
        if other is not None:
            raise SchemaError(
                f"the models of the group {self.name!r} have different outputs: {self.models[0].model!r} returns "
                f"{outputs.names}, {other.model!r} {other.spec.outputs.names}, perhaps of another type"
            )

    @overload
    def predict(self, inputs: Any, ctx: BatchPlace, rows: npt.NDArray[np.int64] | None = None) -> Scores: ...
    @overload
    def predict(self, inputs: Any, ctx: RecordPlace) -> Score: ...
    def predict(
        self,
        inputs: Any,  # noqa: ARG002  # bound groups override
        ctx: BatchPlace | RecordPlace,  # noqa: ARG002  # as above
        rows: npt.NDArray[np.int64] | None = None,  # noqa: ARG002  # as above
    ) -> Scores | Score:
        """Score records with all models, as `Model.predict` does, and return the scores that count.

        Raises ModelError if no model has a score for a record, which makes the record a dead letter.
        """
        raise StateError(f"{self.name!r} scores only while its step runs.")
