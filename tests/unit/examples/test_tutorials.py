"""The code in the tutorials is that of the jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


PAGES = {
    "dynamic_rules": ["dynamic_rules/rules_job.py"],
    "feature_flags": ["feature_flags/flags_job.py"],
    "video_quality": ["video_quality/quality_job.py", "video_quality/wider_job.py"],
    "fraud_scoring": ["fraud_scoring/fraud_job.py", "fraud_scoring/train.py"],
    "windows": ["wordcount/batch_job.py", "wordcount/windowed_job.py", "sessions/sessions_job.py"],
}


def is_part(block: str, code: str) -> bool:
    """Return whether the lines of a block are in the code, in order, regardless of indentation."""
    rest = iter([line.strip() for line in code.splitlines()])
    return all(line in rest for line in filter(None, map(str.strip, block.splitlines())))


@pytest.mark.parametrize("page", PAGES)
def test_the_code_in_a_tutorial_is_that_of_its_jobs(page: str) -> None:
    """Each block matches one job; docstrings and methods may be left out."""
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text()
    codes = [(ROOT / "examples" / job).read_text() for job in PAGES[page]]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        assert any(is_part(block, code) for code in codes), block
