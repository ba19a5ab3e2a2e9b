"""Model: the declaration of a model in a process function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.durations import Duration, milliseconds
from penstock.errors import SchemaError, StateError
from penstock.models.call_watch import CallLimits
from penstock.models.model_policy import ModelPolicy, policy_setting
from penstock.models.orders import NAME_PATTERN
from penstock.models.scores import Score, Scores
from penstock.models.spec import ModelSpec
from penstock.models.versions import ModelVersion
from penstock.records.schemas import record_type
from penstock.state.shared import BroadcastState, Setting

__all__ = ["BatchPlace", "Model", "RecordPlace"]

_NAME: Final = re.compile(NAME_PATTERN)


class RecordPlace(Protocol):
    """The context of a single record."""

    @property
    def key(self) -> Any:
        """The key of the record."""


@runtime_checkable
class BatchPlace(Protocol):
    """The context of a batch of records."""

    key_indices: npt.NDArray[np.int64]
    keys: Any


class Model(BroadcastState[str, ModelVersion]):
    """A model of the whole step, whose versions commands load, examine, promote and take back.

    Declare it in the body of a process function. The versions are a state that the step keeps once, so they are stored,
    dumped and restored like settings, and each step in a version's life counts from one cut on.

    >>> class ScoreFraud(ProcessFunction):
    ...     model = Model("fraud", inputs="amount DOUBLE, age DOUBLE", output="score DOUBLE")
    ...     def process_batch(self, records, ctx):
    ...         scores = self.model.predict(records, ctx)
    ...         every = np.arange(len(records))
    ...         return ctx.select(every, "card", score=scores.values, version=scores.versions)

    Args:
        model: the name by which commands know the model.
        inputs: the columns that it takes, as a schema of numbers, booleans and text. A null number is NaN.
        output: the columns that it returns, one value of each for every record.
        weights: for models in the formats `safetensors` and `arrow`, a class in the job's code. It is called with the
            weights (arrays by name) and the metadata of the file (text by name), and has a method `predict`, which gets
            NumPy arrays by name and returns an array, or a mapping for several output columns.
        trusted: for models in the format `skops`, the full names of types that they may contain besides those of
            scikit-learn, NumPy and SciPy.
        budget: the longest time for 1,000 records on the machine that validates a version; without it, any. While a
            version scores, records of calls that take more than ten times as long count as slow.
        policy: when versions are promoted or rolled back automatically, see `ModelPolicy`. It is a setting of the step,
            named after the model: `fraud-policy`.
        timeout: the longest time that a call may take while a version scores, at least a second. One that takes longer
            hangs: its worker ends, and its work is repeated with the version before.
        memory_mb: by how many MiB a worker may grow during a call; a call beyond that is treated likewise.
        default: the output while no version serves: a value, or a mapping for several output columns. Without it, such
            records become dead letters.
        tolerance: the difference up to which two versions agree on a number.
        allow_nan: whether a score may be infinite or not a number. Otherwise the version before scores the record.
        renamed_from: as for `ValueState`.

    """

    def __init__(
        self,
        model: str,
        *,
        inputs: Any,
        output: Any,
        weights: type | None = None,
        trusted: Sequence[str] = (),
        budget: Duration | None = None,
        policy: ModelPolicy | None = None,
        timeout: Duration = "60s",
        memory_mb: int = 2048,
        default: Any = None,
        tolerance: float = 0.05,
        allow_nan: bool = False,
        renamed_from: str | None = None,
    ) -> None:
        super().__init__(str, ModelVersion, renamed_from=renamed_from)
        self.model = model
        self.spec = ModelSpec(
            record_type(inputs).schema,
            record_type(output).schema,
            weights,
            tuple(trusted),
            None if budget is None else milliseconds(budget, f"The budget of the model {model!r}", min_ms=1),
            allow_nan,
        )
        names = self.spec.outputs.names
        self.default: Mapping[str, Any] | None = None
        if default is not None:
            self.default = default if isinstance(default, Mapping) else {names[0]: default}
        self.tolerance = tolerance
        time_ms = milliseconds(timeout, f"The timeout of the model {model!r}", min_ms=1000)
        self.limits = CallLimits(time_ms / 1000, memory_mb << 20)
        self.policy: Setting[ModelPolicy] = Setting(ModelPolicy, policy or ModelPolicy())
        self.policy.name = policy_setting(model)

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name, and declare the setting that has the policy."""
        super().__set_name__(owner, name)
        setattr(owner, self.policy.name, self.policy)

    def check(self) -> None:
        """Raise SchemaError if the model has columns that no model can have, or a default that does not fit."""
        super().check()
        if not _NAME.fullmatch(self.model):
            raise SchemaError(
                f"{self.model!r} is not a name of a model: use letters, digits, dots, dashes and underscores."
            )
        for field in [*self.spec.inputs, *self.spec.outputs]:
            kind = field.type
            numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            if not numeric and not pa.types.is_string(kind):
                raise SchemaError(
                    f"the model {self.model!r} has a column {field.name!r} of type {kind}; a model takes and returns "
                    "numbers, booleans and text"
                )
        if self.default is not None and set(self.default) != set(self.spec.outputs.names):
            raise SchemaError(
                f"the default of the model {self.model!r} has {', '.join(self.default)}; its output is "
                f"{', '.join(self.spec.outputs.names)}"
            )

    @property
    def serving(self) -> str | None:
        """The version that serves, None if none does."""
        raise self._outside()

    @overload
    def predict(self, inputs: Any, ctx: BatchPlace, rows: npt.NDArray[np.int64] | None = None) -> Scores: ...
    @overload
    def predict(self, inputs: Any, ctx: RecordPlace) -> Score: ...
    def predict(
        self,
        inputs: Any,  # noqa: ARG002  # bound models override
        ctx: BatchPlace | RecordPlace,  # noqa: ARG002  # as above
        rows: npt.NDArray[np.int64] | None = None,  # noqa: ARG002  # as above
    ) -> Scores | Score:
        """Score records with the version that is chosen for their keys.

        In `process_batch`, `inputs` is a record batch, or columns by name (NumPy or Arrow arrays), with at least the
        declared columns; `rows` are the rows of the batch that they belong to, all by default. Elsewhere, `inputs` is a
        record with the declared fields, or a mapping.

        A record for which the chosen version fails is scored by the version before it. Raises ModelError if there is
        none, which makes the record a dead letter.
        """
        raise self._outside()

    def put(self, key: str, value: ModelVersion) -> None:  # noqa: ARG002  # as BroadcastState
        """Raise StateError: versions change by commands only."""
        raise StateError(f"The versions of the model {self.model!r} change by commands, such as load-model.")

    def remove(self, key: str) -> None:
        """Raise StateError: versions change by commands only."""
        raise StateError(
            f"Version {key!r} of the model {self.model!r} stays until a command retires it (retire-model)."
        )
