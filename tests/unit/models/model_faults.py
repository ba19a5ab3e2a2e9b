"""Models with faults that would end the process that runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from model_parts import Linear

PRIORITY_OF_IMPORT = os.nice(0)


class Sleeps(Linear):
    """Never returns."""

    def predict(self, columns: Mapping[str, Any]) -> Any:
        time.sleep(600)


class Allocates(Linear):
    """Allocates more memory than there is."""

    def predict(self, columns: Mapping[str, Any]) -> Any:
        return np.ones(1 << 40)


class Exits(Linear):
    """Ends the process."""

    def predict(self, columns: Mapping[str, Any]) -> Any:
        os._exit(9)


class Slow(Linear):
    """Takes 20 ms."""

    def predict(self, columns: Mapping[str, Any]) -> Any:
        time.sleep(0.02)
        return super().predict(columns)


class Impatient(Linear):
    """Raises, reporting the priority at which its module was imported."""

    def predict(self, columns: Mapping[str, Any]) -> Any:
        raise RuntimeError(f"imported at {PRIORITY_OF_IMPORT}")
