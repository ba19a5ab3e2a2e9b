"""A model whose weights say nothing, and its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save

import penstock as ps

__all__ = ["CONTENT", "MODEL"]


class Doubled:
    """Doubles the amount; its weights say nothing."""

    def __init__(self, weights: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self.weights = weights

    def predict(self, columns: Mapping[str, Any]) -> Any:
        return columns["amount"] * 2


MODEL = ps.Model("fraud", inputs="amount DOUBLE", output="score DOUBLE", weights=Doubled)
CONTENT = save({"any": np.ones(1)})
