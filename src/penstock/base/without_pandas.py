"""Without pandas: keep pandas out of processes that start often and make no frames."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa

__all__ = ["keep_pandas_out"]


class _NoPandas(MetaPathFinder):
    """Finds no pandas, and leaves all other modules to the other finders."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:  # noqa: ARG002  # the signature is Python's
        """Raise ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out.", name=fullname)


def keep_pandas_out() -> None:
    """Let pyarrow do without pandas in this process.

    With its first array pyarrow imports pandas, to check for values of a frame, which takes a quarter of a second. It
    tries once: code that imports pandas later gets it, but pyarrow then makes no frames.
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([None])
        finally:
            sys.meta_path.remove(finder)
