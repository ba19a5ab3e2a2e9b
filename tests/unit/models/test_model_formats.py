"""Model formats: each scores as its library alone does, and the examination measures it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from model_parts import Linear, weights
from onnx_models import matrix_model, named_model
from sklearn.linear_model import LinearRegression, LogisticRegression
from skops_files import skops_file

from penstock.models.model_examination import examine
from penstock.models.orders import Sample
from penstock.models.predictors import open_predictor
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import ModelSpec

INPUTS = pa.schema([("amount", pa.float64()), ("age", pa.float64())])
SCORE = pa.schema([("score", pa.float64())])
RNG = np.random.default_rng(7)
X = RNG.normal(size=(200, 2))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
EXPORTED = Path(__file__).parents[2] / "data" / "models"
COLUMNS: Mapping[str, Any] = {"amount": X[:, 0], "age": X[:, 1]}


def predicted(content: bytes, form: str, spec: ModelSpec) -> Any:
    return open_predictor(content, form, spec).predict(COLUMNS)


@pytest.mark.parametrize("make", [matrix_model, named_model])
def test_onnx_takes_one_input_for_all_columns_or_one_for_each(make: Any) -> None:
    """Inputs match column names, or the declared order."""
    found = predicted(make([2.0, 3.0]), "onnx", ModelSpec(INPUTS, SCORE))
    np.testing.assert_allclose(found["score"], 2 * X[:, 0] + 3 * X[:, 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", sorted(EXPORTED.glob("*.onnx")), ids=lambda path: path.stem)
def test_what_lightgbm_and_xgboost_export_scores_as_they_do(path: Path) -> None:
    """A classifier gives the probability of its second class; tests/data/models/export_models.py made the
    files.
    """
    sample = msgspec.json.decode(path.with_suffix(".sample.json").read_bytes(), type=Sample)
    assert examine(path.read_bytes(), "onnx", ModelSpec(INPUTS, SCORE), sample).refusal == ""
    wrong = {"score": [1.0 + score for score in sample.expected["score"]]}
    with pytest.raises(ModelRefusedError, match="for record 0 of its sample"):
        examine(
            path.read_bytes(),
            "onnx",
            ModelSpec(INPUTS, SCORE),
            msgspec.structs.replace(sample, expected=wrong),
        )


class Halved(LinearRegression):  # type: ignore[misc]  # scikit-learn has no types
    """Half of what a line predicts."""

    def predict(self, columns: Any) -> Any:
        return super().predict(columns) / 2


def test_a_file_of_skops_may_have_types_that_the_job_trusts() -> None:
    """Only these extra types are allowed."""
    model = Halved().fit(X, Y)
    content = skops_file(model)
    with pytest.raises(ModelRefusedError, match="Halved"):
        predicted(content, "skops", ModelSpec(INPUTS, SCORE))
    trusted = (f"{Halved.__module__}.Halved",)
    found = predicted(content, "skops", ModelSpec(INPUTS, SCORE, trusted=trusted))
    np.testing.assert_array_equal(found["score"], model.predict(X))


def test_a_classifier_gives_the_probability_of_its_second_class() -> None:
    """For a column that is not floating-point it gives the class itself."""
    model = LogisticRegression().fit(X, Y)
    content = skops_file(model)
    found = predicted(content, "skops", ModelSpec(INPUTS, SCORE))
    np.testing.assert_array_equal(found["score"], model.predict_proba(X)[:, 1])
    labels = predicted(content, "skops", ModelSpec(INPUTS, pa.schema([("label", pa.int64())])))
    np.testing.assert_array_equal(labels["label"], model.predict(X))


def test_an_estimator_that_knows_names_gets_them() -> None:
    """This avoids the warning that it was fitted with names."""
    import pandas as pd

    frame = pd.DataFrame({"amount": X[:, 0], "age": X[:, 1]})
    model = LinearRegression().fit(frame, Y)
    found = predicted(skops_file(model), "skops", ModelSpec(INPUTS, SCORE))
    np.testing.assert_array_equal(found["score"], model.predict(frame))


class Matrix:
    """Multiplies by a matrix; its output has two columns."""

    def __init__(self, weights: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self.matrix, self.unit = weights["matrix"], metadata.get("unit", "")

    def predict(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        scores = np.column_stack([columns["amount"], columns["age"]]) @ self.matrix
        return {"low": scores[:, 0], "unit": np.full(len(scores), self.unit, object)}


def test_a_class_of_the_users_gets_the_weights_of_an_arrow_file() -> None:
    """Fixed-size lists are a matrix; the metadata is passed along, and there are several output columns."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0, 3.0, 4.0]), 2)
    table = pa.table({"matrix": lists}).replace_schema_metadata({"unit": "EUR"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    outputs = pa.schema([("low", pa.float64()), ("unit", pa.string())])
    found = predicted(sink.getvalue().to_pybytes(), "arrow", ModelSpec(INPUTS, outputs, weights=Matrix))
    np.testing.assert_allclose(found["low"], X[:, 0] + 3 * X[:, 1])
    assert set(found["unit"]) == {"EUR"}


def test_an_examination_compares_the_sample_and_measures() -> None:
    """It uses a thousand records, repeated from the sample."""
    amount = pa.schema([("amount", pa.float64())])
    sample = Sample({"amount": [1.0, 2.0]}, {"score": [2.0, 4.0]})
    found = examine(weights(2.0), "safetensors", ModelSpec(amount, SCORE, weights=Linear), sample)
    assert (found.refusal, found.records) == ("", 1000)
    assert found.ms > 0


def test_jobs_without_models_do_not_load_their_libraries() -> None:
    """This goes for the package and for a worker's imports."""
    program = (
        "import sys, penstock, penstock.runtime.level, penstock.runtime.command_reader, penstock.jobs.compile\n"
        "heavy = {'onnxruntime', 'sklearn', 'skops', 'safetensors', 'scipy'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
