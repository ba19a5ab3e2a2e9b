"""Predictors: load models of all formats, each with a library that is imported when it is needed."""

from __future__ import annotations

from typing import Final

from penstock.models.content_checks import check_content
from penstock.models.refusals import ModelRefusedError
from penstock.models.spec import ModelSpec, Predictor

__all__ = ["open_predictor"]


def open_predictor(content: bytes, form: str, spec: ModelSpec) -> Predictor:
    """Load a model. Runs no code from its content.

    Raises ModelRefusedError when the content is not of the format or does not fit the spec, or when the library for the
    format is missing.
    """
    check_content(content, form)
    try:
        return _OPENERS[form](content, spec)
    except ImportError as e:
        extra = {"onnx": "onnx", "skops": "sklearn", "safetensors": "safetensors"}.get(form, form)
        raise ModelRefusedError(
            f"models of the format {form!r} need a library that is missing here ({e.name}); install "
            f"penstock[{extra}]"
        ) from None


def _open_onnx(content: bytes, spec: ModelSpec) -> Predictor:
    from penstock.models.onnx_format import OnnxPredictor

    return OnnxPredictor(content, spec)


def _open_skops(content: bytes, spec: ModelSpec) -> Predictor:
    from penstock.models.skops_format import EstimatorPredictor

    return EstimatorPredictor(content, spec)


def _open_safetensors(content: bytes, spec: ModelSpec) -> Predictor:
    from penstock.models.weights_format import WeightsPredictor, tensors_of

    return WeightsPredictor(*tensors_of(content), spec)


def _open_arrow(content: bytes, spec: ModelSpec) -> Predictor:
    from penstock.models.weights_format import WeightsPredictor, arrays_of

    return WeightsPredictor(*arrays_of(content), spec)


_OPENERS: Final = {
    "onnx": _open_onnx,
    "skops": _open_skops,
    "safetensors": _open_safetensors,
    "arrow": _open_arrow,
}
