"""Bad models: each is refused with a reason by the command that detects it, and the old version stays."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import operator
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from model_faults import Allocates, Exits, Impatient, Sleeps, Slow
from model_parts import CARDS, Linear, bring_in, last, order, pay, scoring_job, weights
from onnx import TensorProto, helper
from onnx_models import finished, matrix_model, named_model, tensor
from safetensors.numpy import save
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import FunctionTransformer
from skops_files import skops_file

from penstock.models.model_examination import examine_apart
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import ModelSpec
from penstock.testing import JobHarness


class Calls:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.call, (print, "not this")


def zipped(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "."), data)
    return content.getvalue()


def array_of_objects() -> bytes:
    content = io.BytesIO()
    np.save(content, np.array([Calls()], dtype=object), allow_pickle=True)
    return content.getvalue()


def fitted(columns: int = 1) -> bytes:
    return skops_file(LinearRegression().fit(np.ones((3, columns)), np.ones(3)))


def changed_schema(change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a skops file with an edited schema."""
    source, content = zipfile.ZipFile(io.BytesIO(fitted())), io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            if name == "schema.json":
                tree = json.loads(data)
                change(tree)
                data = json.dumps(tree).encode()
            archive.writestr(name, data)
    return content.getvalue()


def call_by_name(tree: dict[str, Any]) -> None:
    tree["content"]["content"]["copy_X"] = {
        "__class__": "methodcaller",
        "__module__": "operator",
        "__loader__": "OperatorFuncNode",
        "attrs": {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode", "content": []},
    }


def unknown_opset() -> bytes:
    return matrix_model([1.0], opset=99)


def unknown_operator() -> bytes:
    node = helper.make_node("RunsShell", ["amount"], ["score"], domain="evil")
    return finished([node], [tensor("amount", [None])], [tensor("score", [None])])


def external_weights() -> bytes:
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="etc/hostname")
    node = helper.make_node("Mul", ["amount", "w"], ["score"])
    return finished([node], [tensor("amount", [None])], [tensor("score", [None])], [outside])


def two_scores() -> bytes:
    node = helper.make_node("Concat", ["amount", "amount"], ["score"], axis=0)
    return finished([node], [tensor("amount", [None])], [tensor("score", [None])])


def three_columns() -> bytes:
    node = helper.make_node("Expand", ["amount", "shape"], ["score"])
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 3])
    return finished([node], [tensor("amount", [None, 1])], [tensor("score", [None, 3])], [shape])


def as_text() -> bytes:
    node = helper.make_node("Cast", ["amount"], ["score"], to=TensorProto.STRING)
    return finished([node], [tensor("amount", [None])], [tensor("score", [None], TensorProto.STRING)])


GOOD = weights(3.0)
SAMPLE = {"inputs": {"amount": [1.0, 2.0]}, "expected": {"score": [3.0, 6.0]}}


@dataclass(frozen=True)
class Bad:
    """A bad model: its content and format, the other fields of the command, and words of the refusal."""

    content: bytes | Callable[[], bytes]
    format: str
    reason: str
    more: Mapping[str, Any] = field(default_factory=dict)


BAD: dict[str, Bad] = {
    "empty": Bad(b"", "onnx", "ONNX Runtime does not load"),
    "not onnx": Bad(b"hello, world", "onnx", "ONNX Runtime does not load"),
    "truncated onnx": Bad(named_model([2.0], ["amount"])[:80], "onnx", "ONNX Runtime does not load"),
    "truncated skops": Bad(lambda: fitted()[:900], "skops", "damaged zip archive"),
    "truncated safetensors": Bad(GOOD[:-4], "safetensors", "not a file of safetensors"),
    "wrong length of a header": Bad(b"\xff" * 8 + b"{}", "safetensors", "not a file of safetensors"),
    "truncated arrow": Bad(b"ARROW1\0\0 and more", "arrow", "not an Arrow file"),
    "not arrow": Bad(GOOD, "arrow", "not an Arrow file or stream"),
    "another format": Bad(GOOD, "skops", "not a zip archive"),
    "unknown opset": Bad(unknown_opset, "onnx", "Opset 99 is under development"),
    "unknown operator": Bad(unknown_operator, "onnx", "ONNX Runtime does not load"),
    "weights in a file of the machine": Bad(external_weights, "onnx", "ONNX Runtime does not load"),
    "the format of the runtime": Bad(b"\0\0\0\0ORTM and more", "onnx", "give it as ONNX"),
    "other input": Bad(named_model([1.0], ["age"]), "onnx", "input 'age', which is none of the declared"),
    "more columns": Bad(matrix_model([1.0, 2.0]), "onnx", "has 2 columns, and the step declares 1: amount"),
    "more columns of skops": Bad(lambda: fitted(2), "skops", "the model takes 2 columns"),
    "two scores for a record": Bad(two_scores, "onnx", "shape 2000 for 1000 records"),
    "three columns of scores": Bad(three_columns, "onnx", "one value for each record"),
    "text for a number": Bad(as_text, "onnx", "which cannot become double"),
    "a pickle": Bad(pickle.dumps(Calls()), "onnx", "is a pickle, which can run any code"),
    "a pickle as weights": Bad(pickle.dumps({"w": [1.0]}), "safetensors", "is a pickle"),
    "a pickle inside a zip": Bad(zipped(data__pkl=pickle.dumps(Calls())), "skops", "member 'data.pkl'"),
    "a pickle inside a zip by another name": Bad(
        zipped(schema__json=b"{}", weights=pickle.dumps(Calls())), "skops", "member 'weights'"
    ),
    "a zip inside a zip": Bad(zipped(inner=zipped(a=b"1")), "skops", "is an archive itself"),
    "an array of objects": Bad(zipped(one__npy=array_of_objects()), "skops", "array of Python objects"),
    "a zip that fills the memory": Bad(zipped(schema__json=b" " * 20_000_000), "skops", "unpacks to"),
    "a compressed pickle": Bad(gzip.compress(pickle.dumps(Calls())), "onnx", "compressed with gzip"),
    "a zip for onnx": Bad(zipped(model__onnx=named_model([1.0], ["amount"])), "onnx", "is a zip archive"),
    "a function that is called by its name": Bad(
        lambda: changed_schema(call_by_name), "skops", "'operator.methodcaller', which is not one"
    ),
    "a function of the user's": Bad(
        lambda: skops_file(FunctionTransformer(pickle.loads)), "skops", "not one of the types"
    ),
    "no predictions": Bad(lambda: skops_file({"a": 1}), "skops", "cannot predict"),
    "a nested schema": Bad(
        zipped(schema__json=b'{"a":' * 400 + b"1" + b"}" * 400), "skops", "nested too deeply"
    ),
    "weights that do not fit": Bad(lambda: save({"other": np.ones(1)}), "safetensors", "KeyError"),
    "a wrong hash": Bad(GOOD, "safetensors", "does not have the SHA-256", {"sha256": "0" * 64}),
    "a place that is not allowed": Bad(GOOD, "safetensors", "may not read", {"uri": "/etc/hostname"}),
    "a file that is not there": Bad(weights(4.0), "safetensors", "cannot be read"),
    "another score for the sample": Bad(
        weights(3.1), "safetensors", "gives 3.1 as 'score' for record 0", {"sample": SAMPLE}
    ),
    "no score for the sample": Bad(
        weights(3.0, nan_from=2.0), "safetensors", "not finite for record 1 of its sample", {"sample": SAMPLE}
    ),
    "a sample of other columns": Bad(
        GOOD, "safetensors", "as many values of each of amount", {"sample": SAMPLE | {"inputs": {"age": [1]}}}
    ),
    "text in a sample of numbers": Bad(
        GOOD,
        "safetensors",
        "values of 'amount' that are not of type double",
        {"sample": SAMPLE | {"inputs": {"amount": ["a", "b"]}}},
    ),
    "a number in a sample that is too large": Bad(
        GOOD,
        "safetensors",
        "values of 'amount' that are not of type double",
        {"sample": SAMPLE | {"inputs": {"amount": [10**30, 1]}}},
    ),
    "text among the expected scores": Bad(
        GOOD, "safetensors", "that are not numbers", {"sample": SAMPLE | {"expected": {"score": ["a", 6.0]}}}
    ),
    "objects among the expected scores": Bad(
        GOOD, "safetensors", "that are not numbers", {"sample": SAMPLE | {"expected": {"score": [{}, 6.0]}}}
    ),
    "a failure": Bad(weights(3.0, fails_from=-1.0), "safetensors", "the model fails: ArithmeticError"),
}


@pytest.fixture(scope="module")
def run() -> JobHarness:
    """A job whose model is served by version `good`."""
    found = JobHarness(scoring_job(), parallelism=2)
    bring_in(found, "good", weights(2.0))
    order(found, "promote", "good")
    pay(found)
    return found


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_model_is_refused_and_the_old_one_serves(name: str, run: JobHarness) -> None:
    """The detecting command's receipt has the reason; a replay refuses in the same way."""
    bad = BAD[name]
    content = bad.content if isinstance(bad.content, bytes) else bad.content()
    version = re.sub("[^a-z]", "-", name)
    load = run.load_model("score", "fraud", version, content, format=bad.format, **bad.more)
    if name == "a file that is not there":
        for path in (run.runner.model_store.path / "incoming").iterdir():
            path.unlink()
    command = order(run, "validate", version)
    promote = order(run, "promote", version)
    assert pay(run) == dict.fromkeys(CARDS, "good")
    run.crash()
    receipts = [last(run, one) for one in (load, command, promote)]
    assert [receipt.status for receipt in receipts][1:] == ["REJECTED", "REJECTED"]
    first = next(receipt for receipt in receipts if receipt.status == "REJECTED")
    assert bad.reason in first.reason
    assert run.dead_letters() == []


AMOUNT = pa.schema([("amount", pa.float64())])
SPEC = ModelSpec(AMOUNT, pa.schema([("score", pa.float64())]))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Sleeps, "was not examined within 1 s"),
        (Allocates, "memory|Unable to allocate"),
        (Exits, "ended with the status 9"),
        (Slow, "its budget is 10 ms"),
    ],
)
def test_what_a_model_does_to_its_process_it_does_to_that_of_the_examination(
    kind: type, reason: str, tmp_path: Path
) -> None:
    """That process has limited time and memory."""
    path = tmp_path / "model"
    path.write_bytes(GOOD)
    spec = dataclasses.replace(SPEC, weights=kind, budget_ms=10)
    with pytest.raises(ModelRefusedError, match=reason):
        examine_apart(path, "safetensors", spec, None, time_limit_s=1.0 if kind is Sleeps else 60)


def test_the_process_of_an_examination_finds_good_models_good(tmp_path: Path) -> None:
    """One uses a class that only the job has."""
    path = tmp_path / "model"
    path.write_bytes(GOOD)
    found = examine_apart(path, "safetensors", dataclasses.replace(SPEC, weights=Linear), None)
    assert (found.refusal, found.records) == ("", 1000)


def test_an_examination_leaves_the_processors_to_the_job_from_its_beginning(tmp_path: Path) -> None:
    """Importing libraries, which takes longest, already runs at low priority."""
    path = tmp_path / "model"
    path.write_bytes(GOOD)
    spec = dataclasses.replace(SPEC, weights=Impatient)
    with pytest.raises(ModelRefusedError, match=f"imported at {min(19, os.nice(0) + 10)}$"):
        examine_apart(path, "safetensors", spec, None)


def test_a_model_that_changes_on_its_way_is_refused_and_can_be_loaded_again() -> None:
    """The name can be reused once the content is right."""
    run = JobHarness(scoring_job())
    run.load_model("score", "fraud", "1", weights(2.0), format="safetensors")
    store = run.runner.model_store.path
    (content,) = (store / "incoming").iterdir()
    right = content.read_bytes()
    content.write_bytes(b"other")
    first = order(run, "validate", "1")
    pay(run)
    assert "was changed or is another file" in last(run, first).reason
    content.write_bytes(right)
    second = order(run, "validate", "1")
    pay(run)
    assert last(run, second).status == "APPLIED"
    content.unlink()
    promoted = order(run, "promote", "1")
    assert set(pay(run).values()) == {"1"}
    assert last(run, promoted).status == "APPLIED"


def test_kept_content_that_is_damaged_is_not_promoted() -> None:
    """The command checks it before any slot depends on it."""
    run = JobHarness(scoring_job())
    bring_in(run, "1", weights(2.0))
    pay(run)
    for path in (run.runner.model_store.path / "models").glob("[0-9a-f]*"):
        if path.is_file():
            path.write_bytes(b"other")
    promote = order(run, "promote", "1")
    pay(run)
    assert "is damaged" in last(run, promote).reason
