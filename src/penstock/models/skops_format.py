"""skops: estimators of scikit-learn, stored without pickle, and loaded with a list of the types that are allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.models.content_checks import open_archive
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import Columns, ModelSpec, matrix_of, output_column

__all__ = ["EstimatorPredictor"]

_SCHEMA: Final = "schema.json"
# Types that skops trusts by default, although they call something by its name, or fill memory unchecked.
_CALLS: Final = (
    "ConstructorFromReduceNode",
    "MethodNode",
    "OperatorFuncNode",
    "PartialNode",
    "RandomGeneratorNode",
    "RandomStateNode",
)
_MAX_DEPTH: Final = 200


class EstimatorPredictor:
    """An estimator. Raises ModelRefusedError for types that are not allowed, and for other columns than those declared.

    A classifier gives the probability of its second class for a column of floats, and the class for others.
    """

    def __init__(self, content: bytes, spec: ModelSpec) -> None:
        import skops.io

        _check_types(content, spec.trusted)
        try:
            unknown = sorted(set(skops.io.get_untrusted_types(data=content)) - set(spec.trusted))
            if unknown:
                raise ModelRefusedError(_untrusted(unknown[0]))
            self._estimator: Final = skops.io.loads(content, trusted=list(spec.trusted))
        except ModelRefusedError:
            raise
        except Exception as e:  # a damaged file raises anything
            raise ModelRefusedError(f"skops does not load the model: {type(e).__name__}: {e}"[:300]) from None
        self._spec: Final = spec
        if not hasattr(self._estimator, "predict"):
            raise ModelRefusedError(f"the model is a {type(self._estimator).__name__}, which cannot predict")
        names = list(getattr(self._estimator, "feature_names_in_", []))
        count = getattr(self._estimator, "n_features_in_", len(spec.inputs.names))
        if (names and names != spec.inputs.names) or count != len(spec.inputs.names):
            takes = ", ".join(map(str, names)) if names else f"{count} columns"
            raise ModelRefusedError(
                f"the model takes {takes}, and the step declares {', '.join(spec.inputs.names)}"
            )
        if len(spec.outputs.names) != 1:
            raise ModelRefusedError(
                "a model of scikit-learn has one output column, and the step declares more"
            )
        self._has_names: Final = bool(names)
        (only,) = spec.outputs
        is_score = pa.types.is_floating(only.type)
        self._method: Final = (
            "predict_proba" if is_score and hasattr(self._estimator, "predict_proba") else "predict"
        )

    def predict(self, columns: Columns) -> Columns:
        """Return the output column."""
        given: Any
        if self._has_names:
            import pandas as pd  # type: ignore[import-untyped]  # it brings no types

            given = pd.DataFrame(dict(columns), copy=False)
        else:
            given = matrix_of(columns, np.float64)
        (name,) = self._spec.outputs.names
        return {name: output_column(np.asarray(getattr(self._estimator, self._method)(given)), name)}


def _untrusted(name: str) -> str:
    return (
        f"the model contains {name!r}, which is not one of the types that are allowed; list it in trusted= of the "
        "ps.Model if its code is harmless"
    )


def _check_types(content: bytes, trusted: tuple[str, ...]) -> None:
    """Raise ModelRefusedError for a node that calls something by its name."""
    with open_archive(content) as archive:
        try:
            tree = json.loads(archive.read(_SCHEMA))
        except (KeyError, ValueError, RecursionError):
            raise ModelRefusedError(
                "the model is not a file of skops: it has no readable schema.json"
            ) from None
    for node in _nodes(tree, 0):
        name = f"{node.get('__module__')}.{node.get('__class__')}"
        if node.get("__loader__") in _CALLS and name not in trusted:
            raise ModelRefusedError(_untrusted(name))


def _nodes(tree: Any, depth: int) -> Iterator[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        raise ModelRefusedError("the model is nested too deeply")
    if isinstance(tree, dict):
        if "__loader__" in tree:
            yield tree
        for value in tree.values():
            yield from _nodes(value, depth + 1)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value, depth + 1)
