"""Processes without pandas."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
import pyarrow as pa
from penstock.base.without_pandas import keep_pandas_out
keep_pandas_out()
assert pa.table({"a": [1]}).num_rows == 1
print("pandas" in sys.modules)
import pandas
print(pandas.DataFrame({"a": [1]})["a"].sum())
"""


def test_pyarrow_does_without_pandas_and_others_still_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "1"]
