"""The guide of testing: its job and its tests run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.testing import JobHarness

GUIDE = Path(__file__).parents[3] / "docs" / "testing.md"
JOB, TEST, LOOKUP_TEST, PLUGIN_TEST = re.findall(
    r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE
)


def test_a_control_record_a_timer_and_a_crash_take_20_lines_and_less_than_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the imports of the test, and with two crashes."""
    (tmp_path / "alarms.py").write_text(JOB)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    began = time.process_time()
    exec(compile(TEST, str(GUIDE), "exec"), names)
    names["test_a_room_that_is_too_warm_gives_an_alarm"]()  # type: ignore[operator]
    took = time.process_time() - began
    monkeypatch.delitem(sys.modules, "alarms")
    assert len(TEST.splitlines()) <= 20
    assert took < 1


def test_the_tests_of_the_guide_pass_with_the_plugin(tmp_path: Path) -> None:
    """In a session of pytest of their own."""
    (tmp_path / "alarms.py").write_text(JOB)
    (tmp_path / "test_alarms.py").write_text(TEST + PLUGIN_TEST)
    (tmp_path / "test_floors.py").write_text(LOOKUP_TEST)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_penstock",
        ],
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_guide_names_each_public_method() -> None:
    """And none that there is not."""
    table = re.findall(r"`(\w+)\(", GUIDE.read_text())
    methods = {
        name for name, value in vars(JobHarness).items() if callable(value) and not name.startswith("_")
    }
    assert methods <= set(table)
    assert set(table) - methods <= {"JobHarness"}
