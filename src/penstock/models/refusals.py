"""Refusals: why a model, a step in its life or a score is refused."""

from __future__ import annotations

from penstock.errors import PenstockError

__all__ = ["ModelError", "ModelRefusedError"]


class ModelRefusedError(PenstockError):
    """A model cannot be used, or a version is not in the status that a command needs."""

    fault = "user"


class ModelError(PenstockError):
    """No version of a model has a score for a record."""

    fault = "user"
