"""Small ONNX models, made node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def finished(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    opset: int = 17,
) -> bytes:
    """The file of a graph."""
    graph = helper.make_graph(list(nodes), "model", list(inputs), list(outputs), list(weights))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return bytes(made.SerializeToString())


def tensor(name: str, shape: Sequence[Any], kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def matrix_model(factors: Sequence[float], name: str = "score", opset: int = 17) -> bytes:
    """A sum of the columns of one input, each with its factor."""
    values = numpy_helper.from_array(np.array([[one] for one in factors], np.float32), "factors")
    node = helper.make_node("MatMul", ["features", "factors"], [name])
    shape = [None, len(factors)]
    return finished([node], [tensor("features", shape)], [tensor(name, [None, 1])], [values], opset)


def named_model(factors: Sequence[float], names: Sequence[str] = ("amount", "age")) -> bytes:
    """The same with one input for each column."""
    values = [
        numpy_helper.from_array(np.array(one, np.float32), f"by_{name}")
        for one, name in zip(factors, names, strict=True)
    ]
    nodes = [helper.make_node("Mul", [name, f"by_{name}"], [f"of_{name}"]) for name in names]
    nodes.append(helper.make_node("Sum", [f"of_{name}" for name in names], ["score"]))
    return finished(nodes, [tensor(name, [None]) for name in names], [tensor("score", [None])], values)
