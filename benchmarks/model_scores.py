"""Scores per CPU-second: a model in a step beside ONNX Runtime alone on the same batches: `make bench-models`."""

from __future__ import annotations

import functools
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from penstock.models.bound_model import BoundModel, ModelPlace
from penstock.models.library_places import FolderPlace
from penstock.models.model import Model
from penstock.models.suspensions import SlotSuspensions
from penstock.models.versions import ModelVersion
from penstock.state.cursor import Cursor
from penstock.state.shared import SharedStates

RECORDS = 500_000
BATCH = 10_000
COLUMNS = 6
ROUNDS = 5


def batches(dtype: type) -> list[pa.RecordBatch]:
    """Return the records in batches."""
    draw = np.random.default_rng(7)
    names = [f"f{number}" for number in range(COLUMNS)]
    return [
        pa.RecordBatch.from_arrays([pa.array(draw.normal(size=BATCH).astype(dtype)) for _ in names], names)
        for _ in range(RECORDS // BATCH)
    ]


def content_of(model: Any) -> bytes:
    """Train a model, and return it as ONNX."""
    draw = np.random.default_rng(8)
    inputs = draw.normal(size=(5000, COLUMNS)).astype(np.float32)
    labels = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] > 0).astype(np.int64)
    made = to_onnx(model.fit(inputs, labels), inputs[:1], options={"zipmap": False}, target_opset=17)
    return bytes(made.SerializeToString())


def bound(folder: Path, contents: dict[str, tuple[bytes, str]], kind: str) -> BoundModel:
    """Return a model at run time, with versions of these contents and statuses."""
    declared = Model(
        "bench", inputs=", ".join(f"f{number} {kind}" for number in range(COLUMNS)), output="score DOUBLE"
    )
    declared.name = "model"
    states = SharedStates({"model": declared, declared.policy.name: declared.policy}, None)
    for name, (content, status) in contents.items():
        sha256 = hashlib.sha256(content).hexdigest()
        (folder / sha256).write_bytes(content)
        share = 0.1 if status == "CANARY" else 0.0
        rank = 1 if status == "SERVING" else 0
        states.mapping("model")[name] = ModelVersion(status, "onnx", sha256, "", share=share, rank=rank)
    found = BoundModel(
        declared,
        states,
        Cursor(None, []),
        ModelPlace(FolderPlace(str(folder)), pa.int64()),
        SlotSuspensions(None, "", (0,)),
    )
    found.make_ready()
    return found


def seconds(work: Callable[[pa.RecordBatch], Any], given: list[pa.RecordBatch]) -> float:
    """Return the median processor time to do the work on all batches."""
    taken = []
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        for batch in given:
            work(batch)
        taken.append(time.process_time() - begun_s)
    return statistics.median(taken)


def alone(content: bytes) -> Callable[[pa.RecordBatch], Any]:
    """Return a function that calls ONNX Runtime on a batch, in one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(batch: pa.RecordBatch) -> Any:
        matrix = np.column_stack([column.to_numpy() for column in batch.columns]).astype(np.float32)
        return session.run(["probabilities"], {"X": matrix})

    return run


def score(model: BoundModel, place: Any, batch: pa.RecordBatch) -> Any:
    """Score a batch as `process_batch` does."""
    return model.predict(batch, place)


def main() -> None:
    """Print records per CPU-second, alone and in a step, for models of two sizes."""
    keys = pa.array(range(1000), pa.int64())
    place: Any = SimpleNamespace(keys=keys, key_indices=np.arange(BATCH) % 1000)
    models = {
        "logistic regression": LogisticRegression(),
        "100 trees": GradientBoostingClassifier(n_estimators=100, max_depth=4, random_state=7),
    }
    for title, estimator in models.items():
        content = content_of(estimator)
        other = content_of(estimator.set_params(random_state=8))
        for kind, dtype in (("DOUBLE", np.float64), ("FLOAT", np.float32)):
            given = batches(dtype)
            with tempfile.TemporaryDirectory() as name:
                base_s = seconds(alone(content), given)
                print(f"{title}, {kind}: ONNX Runtime alone {RECORDS / base_s:,.0f} records per CPU-second")
                for what, versions in {
                    "in a step": {"1": (content, "SERVING")},
                    "with a canary": {"1": (content, "SERVING"), "2": (other, "CANARY")},
                    "with a shadow": {"1": (content, "SERVING"), "2": (other, "SHADOW")},
                }.items():
                    model = bound(Path(name), versions, kind)
                    took_s = seconds(functools.partial(score, model, place), given)
                    print(
                        f"  {what}: {RECORDS / took_s:,.0f} records per CPU-second, {base_s / took_s:.2f} of it"
                    )


if __name__ == "__main__":
    main()
