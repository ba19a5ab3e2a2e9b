"""Orders: the payloads of the commands on the versions of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

__all__ = [
    "MODEL_ORDERS",
    "NAME_PATTERN",
    "CanaryModel",
    "LoadModel",
    "ModelFormat",
    "ModelOrder",
    "PinModel",
    "PromoteModel",
    "RemoveModel",
    "RetireModel",
    "RollBackModel",
    "Sample",
    "ShadowModel",
    "ValidateModel",
]

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What names of models and versions are like."""

ModelFormat: TypeAlias = Literal["onnx", "skops", "safetensors", "arrow"]
_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=NAME_PATTERN)]
_Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records with the scores that a model must give for them: columns by name, and how far numbers may differ."""

    inputs: dict[str, list[Any]]
    expected: dict[str, list[Any]]
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 1e-4


class ModelOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all orders have in common: the model and the version."""

    model: _Name
    version: _Name


class LoadModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Registers a version: where its content is, its SHA-256 and its format."""

    uri: str
    sha256: _Sha256
    format: ModelFormat
    metadata: dict[str, Any] = {}
    sample: Sample | None = None


class ValidateModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Examines a version: its content, its columns, its sample and its time."""


class ShadowModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Lets a version score beside the one that serves."""


class CanaryModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Lets a version serve a share of the keys."""

    share: _Share
    reason: str = ""


class PromoteModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Lets a version serve."""

    reason: str = ""


class RollBackModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes back a canary or a shadow, or lets the version before serve again if `version` is left out."""

    model: _Name
    version: _Name | None = None
    reason: str = ""


class PinModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lets a version serve some keys, whatever serves the others; without a version, unpins the keys."""

    model: _Name
    keys: Annotated[list[Any], msgspec.Meta(min_length=1, max_length=1000)]
    version: _Name | None = None


class RetireModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Lets a version score nothing from now on."""


class RemoveModel(ModelOrder, frozen=True, forbid_unknown_fields=True):
    """Forgets a version; its content leaves the checkpoint once no retained micro-batch knows the version."""


MODEL_ORDERS: Final[Mapping[str, Any]] = {
    "load-model": LoadModel,
    "validate-model": ValidateModel,
    "shadow-model": ShadowModel,
    "canary-model": CanaryModel,
    "promote-model": PromoteModel,
    "roll-back-model": RollBackModel,
    "pin-model": PinModel,
    "retire-model": RetireModel,
    "remove-model": RemoveModel,
}
"""The payload of each kind of command on models."""
