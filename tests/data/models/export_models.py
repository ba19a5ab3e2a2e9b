"""Train small models with LightGBM and XGBoost, and export them to ONNX, for tests/unit/models/test_model_formats.py.

    python -m venv exporters && exporters/bin/pip install lightgbm xgboost-cpu onnxmltools skl2onnx
    exporters/bin/python tests/data/models/export_models.py

Each file comes with some records and the scores that its own library gives them, as `load-model` takes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier, LGBMRegressor
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from xgboost import XGBClassifier, XGBRegressor

HERE = Path(__file__).parent
COLUMNS = ("amount", "age")


def main() -> None:
    draw = np.random.default_rng(3)
    inputs = draw.uniform(0, 10, size=(500, len(COLUMNS))).astype(np.float32)
    amounts = inputs[:, 0] * inputs[:, 1]
    is_large = (amounts > 20).astype(int)
    kind = [("features", FloatTensorType([None, len(COLUMNS)]))]
    few = {"n_estimators": 8, "max_depth": 3, "random_state": 1}
    for name, model, target, convert in (
        ("lightgbm_classifier", LGBMClassifier(**few, verbose=-1), is_large, convert_lightgbm),
        ("lightgbm_regressor", LGBMRegressor(**few, verbose=-1), amounts, convert_lightgbm),
        ("xgboost_classifier", XGBClassifier(**few), is_large, convert_xgboost),
        ("xgboost_regressor", XGBRegressor(**few), amounts, convert_xgboost),
    ):
        model.fit(inputs, target)
        more: dict[str, Any] = {"zipmap": False} if convert is convert_lightgbm else {}
        onnx = convert(model, initial_types=kind, target_opset=15, **more)
        (HERE / f"{name}.onnx").write_bytes(onnx.SerializeToString())
        some = inputs[:20]
        scores = model.predict_proba(some)[:, 1] if "classifier" in name else model.predict(some)
        sample = {
            "inputs": {column: some[:, place].tolist() for place, column in enumerate(COLUMNS)},
            "expected": {"score": np.asarray(scores, float).tolist()},
        }
        (HERE / f"{name}.sample.json").write_text(json.dumps(sample) + "\n")


if __name__ == "__main__":
    main()
