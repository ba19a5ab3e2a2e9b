"""An example as its readers start it: a server, a job and the program that looks on, each a process.

The others are in tests/integration/test_stories.py.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from free_ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_profit_of_each_month_is_told_while_sales_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a server of their own, all sales once; and lines that are no sales are set aside."""
    options = ["--port", str(free_port()), "--sales", "300", "--per-second", "200", "--to", str(tmp_path)]
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / "profit_per_month" / "run.py"), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "and 3 lines of the server were not sales" in finished.stdout
    header, *rows = (tmp_path / "profitPerMonthWindowed.txt").read_text().splitlines()
    assert header == '"month","window_start","window_end","profit","count"'
    found: dict[str, Counter[str]] = {}
    for row in rows:
        month, _, _, profit, count = row.split(",")
        found.setdefault(month.strip('"'), Counter()).update(profit=int(profit), count=int(count))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sales_server = importlib.import_module("profit_per_month.sales_server")
    wanted: dict[str, Counter[str]] = {}
    for line in sales_server.sales(300):
        if re.fullmatch(r"[-\d]+,\w+,\w+,\w+,\d+", line):
            _, month, _, _, profit = line.split(",")
            wanted.setdefault(month, Counter()).update(profit=int(profit), count=1)
    assert found == wanted
