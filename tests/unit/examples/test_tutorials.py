"""The tutorials show the jobs as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("page", "job"), [("dynamic_rules", "rules_job"), ("feature_flags", "flags_job")])
def test_the_code_in_a_tutorial_is_that_of_the_job(page: str, job: str) -> None:
    """Line by line, in order, whatever the indentation; docstrings and methods may be left out."""
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text()
    code = (ROOT / "examples" / page / f"{job}.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        rest = iter([line.strip() for line in code.splitlines()])
        for line in filter(None, map(str.strip, block.splitlines())):
            assert line in rest, line
