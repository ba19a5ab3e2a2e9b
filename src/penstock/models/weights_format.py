"""Weights: arrays from a file for a user's class, which is part of the job's code."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import Columns, ModelSpec, output_column

__all__ = ["WeightsPredictor", "arrays_of", "tensors_of"]

_Arrays = dict[str, npt.NDArray[Any]]


class WeightsPredictor:
    """An object of the user's class, made of the weights. Raises ModelRefusedError when the class refuses them."""

    def __init__(self, weights: _Arrays, metadata: Mapping[str, str], spec: ModelSpec) -> None:
        if spec.weights is None:
            raise ModelRefusedError(
                "the model consists of weights, and the step declares no class for them; give "
                "ps.Model(..., weights=CLASS)"
            )
        try:
            self._model: Final = spec.weights(weights, dict(metadata))
        except Exception as e:  # the class is the user's
            raise ModelRefusedError(
                f"{spec.weights.__name__} refuses the weights: {type(e).__name__}: {e}"
            ) from None
        self._outputs: Final = list(spec.outputs.names)

    def predict(self, columns: Columns) -> Columns:
        """Return the output columns."""
        found = self._model.predict(columns)
        if not isinstance(found, Mapping):
            found = dict.fromkeys(self._outputs, found) if len(self._outputs) == 1 else {}
        missing = [name for name in self._outputs if name not in found]
        if missing:
            raise ModelRefusedError(f"the model returned no column {missing[0]!r}")
        return {name: output_column(np.asarray(found[name]), name) for name in self._outputs}


def tensors_of(content: bytes) -> tuple[_Arrays, dict[str, str]]:
    """Return the arrays and the metadata of a file of safetensors. Raises ModelRefusedError."""
    from safetensors.numpy import load

    try:
        arrays: _Arrays = load(content)
        size = int.from_bytes(content[:8], "little")
        header = msgspec.json.decode(content[8 : 8 + size], type=dict[str, Any])
        return arrays, {name: str(value) for name, value in header.get("__metadata__", {}).items()}
    except Exception as e:  # the library has errors of its own
        raise ModelRefusedError(
            f"the model is not a file of safetensors: {type(e).__name__}: {e}"[:300]
        ) from None


def arrays_of(content: bytes) -> tuple[_Arrays, dict[str, str]]:
    """Return each column of an Arrow file or stream as an array, lists of a fixed size as a matrix.

    Raises ModelRefusedError.
    """
    try:
        buffer = pa.BufferReader(content)
        is_file = content.startswith(b"ARROW1")
        table = (pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(io.BytesIO(content))).read_all()
        found = {name: _array(table.column(name).combine_chunks()) for name in table.column_names}
    except (pa.ArrowException, ValueError, OSError, TypeError) as e:
        raise ModelRefusedError(f"the model is not an Arrow file or stream: {e}"[:300]) from None
    metadata = table.schema.metadata or {}
    return found, {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in metadata.items()
    }


def _array(column: Any) -> npt.NDArray[Any]:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if pa.types.is_fixed_size_list(column.type):
        flat: npt.NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(column), column.type.list_size)
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found
