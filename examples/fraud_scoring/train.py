"""Train the versions of the model, and export them as ONNX: `python train.py FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fraud_scoring.feed import FEATURES, day


def examples(days: range, features: tuple[str, ...] = FEATURES) -> tuple[Any, Any]:
    """Return the payments of earlier days as a matrix, and which of them were fraud."""
    rows, labels = [], []
    for number in days:
        payments, fraud = day(number)
        rows += [[payment[name] for name in features] for payment in payments]
        labels += [payment["payment"] in set(fraud) for payment in payments]
    return np.array(rows, np.float32), np.array(labels, np.int64)


def export(model: Any, path: Path) -> None:
    """Write a model as ONNX, and beside it some payments with their scores, by which the job knows it again."""
    inputs, _ = examples(range(-1, 0))
    onnx = to_onnx(model, inputs[:1], options={"zipmap": False}, target_opset=17)
    path.write_bytes(onnx.SerializeToString())
    some = inputs[:20]
    sample = {
        "inputs": {name: some[:, place].tolist() for place, name in enumerate(FEATURES)},
        "expected": {"score": model.predict_proba(some)[:, 1].tolist()},
        "tolerance": 1e-3,
    }
    path.with_suffix(".sample.json").write_text(json.dumps(sample))


def train(folder: Path) -> None:
    """Train a simple version, a better one, and one that was given the wrong labels."""
    inputs, labels = examples(range(-10, -5))
    # Version 1 knows nothing of hours and devices.
    known = inputs * np.array([1, 0, 1, 0], np.float32)
    export(make_pipeline(StandardScaler(), LogisticRegression()).fit(known, labels), folder / "1.onnx")
    better = GradientBoostingClassifier(n_estimators=60, max_depth=3, random_state=7)
    export(better.fit(inputs, labels), folder / "2.onnx")
    wrong = np.random.default_rng(7).permutation(labels) | (inputs[:, 0] > 25)
    bad = GradientBoostingClassifier(n_estimators=20, max_depth=2, random_state=7)
    export(bad.fit(inputs, wrong), folder / "3.onnx")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
