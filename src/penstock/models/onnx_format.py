"""ONNX: models that ONNX Runtime runs, with one input for each column or one for all."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import Columns, ModelSpec, matrix_of, output_column

__all__ = ["OnnxPredictor"]

_TYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}
_NUMBERS: Final = ("tensor(float)", "tensor(double)", "tensor(float16)")
# A model must not read weights from files of the machine, and this folder never exists.
_NO_FOLDER: Final = "/nonexistent/penstock"
_ERRORS_ONLY: Final = 4
# A place in the source of the library, with the signature of a function.
_SOURCE: Final = re.compile(r"/\S*onnxruntime\S*/.*\) (?=[A-Z])")


class OnnxPredictor:
    """A session of ONNX Runtime in one thread, since each task of a job has a core.

    Raises ModelRefusedError when the content is not a model, or its inputs and outputs are not those of the spec.
    """

    def __init__(self, content: bytes, spec: ModelSpec) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NO_FOLDER)
        try:
            self._session: Final = onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as e:  # the library has an exception of its own for each status
            raise ModelRefusedError(f"ONNX Runtime does not load the model: {_sentence(e)}") from None
        self._inputs: Final = {found.name: found for found in self._session.get_inputs()}
        self._spec: Final = spec
        self._as_matrix: Final = self._takes_matrix()
        for found in self._inputs.values():
            if found.type not in _TYPES:
                raise ModelRefusedError(f"the input {found.name!r} is a {found.type}, which no column can be")
        self._outputs: Final = self._chosen_outputs()

    def predict(self, columns: Columns) -> Columns:
        """Return the output columns."""
        found = self._session.run(list(self._outputs.values()), self._feeds(columns))
        return {
            name: output_column(np.asarray(array), name)
            for name, array in zip(self._outputs, found, strict=True)
        }

    def _takes_matrix(self) -> bool:
        """Return whether a single input takes all columns side by side."""
        names = self._spec.inputs.names
        (only, *others) = self._inputs.values() if self._inputs else (None,)
        if (
            only is not None
            and not others
            and len(only.shape) == 2
            and (len(names) > 1 or only.name not in names)
        ):
            if isinstance(only.shape[1], int) and only.shape[1] != len(names):
                raise ModelRefusedError(
                    f"the only input {only.name!r} of the model has {only.shape[1]} columns, and the step declares "
                    f"{len(names)}: {', '.join(names)}"
                )
            return True
        missing = [name for name in self._inputs if name not in names]
        if missing:
            raise ModelRefusedError(
                f"the model has an input {missing[0]!r}, which is none of the declared columns {', '.join(names)}"
            )
        return False

    def _chosen_outputs(self) -> dict[str, str]:
        """Return the output of the model for each declared column: the one of its name, else the only one of floats."""
        outputs = {found.name: found for found in self._session.get_outputs()}
        chosen = {}
        for field in self._spec.outputs:
            if field.name in outputs:
                chosen[field.name] = field.name
                continue
            fits = [
                name
                for name, found in outputs.items()
                if (found.type in _NUMBERS) == pa.types.is_floating(field.type) and found.type in _TYPES
            ]
            if len(self._spec.outputs) > 1 or len(fits) != 1:
                raise ModelRefusedError(
                    f"the model has no output {field.name!r}; it has "
                    f"{', '.join(f'{name} ({found.type})' for name, found in outputs.items())}"
                )
            chosen[field.name] = fits[0]
        return chosen

    def _feeds(self, columns: Columns) -> dict[str, npt.NDArray[Any]]:
        if self._as_matrix:
            ((name, only),) = self._inputs.items()
            return {name: matrix_of(columns, _TYPES[only.type])}
        found: dict[str, npt.NDArray[Any]] = {}
        for name, wanted in self._inputs.items():
            column: npt.NDArray[Any] = columns[name].astype(_TYPES[wanted.type], copy=False)
            found[name] = column.reshape(-1, 1) if len(wanted.shape) == 2 else column
        return found


def _sentence(error: Exception) -> str:
    """Return the message of ONNX Runtime without its file names and addresses, which differ between builds."""
    text = " ".join(str(error).split()).removeprefix("[ONNXRuntimeError] :").strip()
    return _SOURCE.sub("", text)[:300]
