"""Expression transforms: apply a condition or a selection to records, as columns; also in a step with settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import JobDefinitionError
from penstock.expressions.expression import Condition, Selection
from penstock.operators.functions import BatchContext, ProcessFunction
from penstock.operators.record_blocks import DeadLetter, Records
from penstock.records.types import RecordType
from penstock.state.shared import Setting
from penstock.state.state_spec import value_spec

__all__ = [
    "ExpressionStep",
    "apply_expression",
    "expression_step",
    "make_settings",
    "parameter_types",
    "read_parameters",
]


def apply_expression(
    expression: Condition | Selection, records: Records, input_type: RecordType, name: str
) -> tuple[Records, list[DeadLetter]]:
    """Return the records for which a condition is true, or the selected ones. Those that fail are dead letters."""
    if isinstance(expression, Condition):
        rows, failures = expression.true_rows(records.batch, {})
        kept = records if len(rows) == len(records) else records.take(rows)
    else:
        batch, failures = expression.columns(records.batch, {})
        kept = records.with_batch(batch)
        if failures:
            kept = kept.take(np.delete(np.arange(len(records)), list(failures)))
    return kept, [records.dead_letter(row, reason, input_type, name) for row, reason in failures.items()]


class ExpressionSetting(Setting[Any]):
    """A parameter of an expression as a setting of the step. It takes effect at the cut, for all records alike."""

    has_history = False


def make_settings(parameters: Mapping[str, Setting[Any]]) -> dict[str, Any]:
    """Return the settings that a step declares for the parameters of its expressions, by name."""
    return {
        name: ExpressionSetting(one.set_type, one.default, renamed_from=one.renamed_from)
        for name, one in parameters.items()
    }


def read_parameters(function: object, types: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """Return the current values of parameters that are settings of the function of a step."""
    return {name: pa.scalar(getattr(function, name).get(), kind) for name, kind in types.items()}


class ExpressionStep(ProcessFunction):
    """The function of a step that evaluates a condition or a selection with parameters, which are its settings."""

    def __init__(self, expression: Condition | Selection, types: Mapping[str, pa.DataType]) -> None:
        self.expression: Final = expression
        self._types: Final = {name: types[name] for name in expression.parameters}

    def process_batch(self, records: pa.RecordBatch, ctx: BatchContext) -> Any:  # noqa: ARG002  # as declared
        """Emit the records for which the condition is true, or the selected ones. Raises ValueError if one fails."""
        values = read_parameters(self, self._types)
        if isinstance(self.expression, Condition):
            rows, failures = self.expression.true_rows(records, values)
            result: Any = (records.take(pa.array(rows)), rows) if len(rows) else None
        else:
            result, failures = self.expression.columns(records, values)
        if failures:
            raise ValueError(next(iter(failures.values())))
        return result


def parameter_types(settings: Mapping[str, Any], who: str) -> dict[str, pa.DataType]:
    """Return the types of parameters by name. Raises JobDefinitionError or SchemaError for wrong declarations."""
    found: dict[str, pa.DataType] = {}
    for name, setting in settings.items():
        if not isinstance(setting, Setting):
            raise JobDefinitionError(
                f"{who} has the setting {name!r}, which is {setting!r}. Declare it as a setting, such as "
                "ps.Setting(float, 1.0)."
            )
        if (
            not name.isidentifier()
            or hasattr(ExpressionStep, name)
            or name.startswith("_")
            or name == "expression"
        ):
            raise JobDefinitionError(f"{who} cannot have a setting named {name!r}; choose another name.")
        found[name] = value_spec(name, setting.set_type).arrow_type
    return found


def expression_step(
    expression: Condition | Selection,
    settings: Mapping[str, Setting[Any]],
    types: Mapping[str, pa.DataType],
    who: str,
) -> ExpressionStep:
    """Return the function of a step with these settings. Raises JobDefinitionError if the expression lacks one."""
    for name in settings:
        if name not in expression.parameters:
            raise JobDefinitionError(
                f"{who} declares the setting {name!r}, but does not use ${{{name}}}. Remove it."
            )
    own = make_settings(settings)
    kind = type("ExpressionStep", (ExpressionStep,), own)
    found: ExpressionStep = kind(expression, types)
    return found
