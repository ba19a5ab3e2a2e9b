"""The Python of a guide, which tests run as its readers would."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["PAGE_OF_CONNECTORS", "code_of", "python_of"]

PAGE_OF_CONNECTORS = Path(__file__).parents[2] / "docs" / "connectors" / "custom.md"


def code_of(page: Path, file: str) -> str:
    """The code of a file that a page shows right after the line with its name."""
    block = rf"`{re.escape(file)}`:\n\n```python\n(.*?)^```"
    found = re.search(block, page.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, file
    return found.group(1)


@contextmanager
def python_of(page: Path) -> Iterator[dict[str, Any]]:
    """Run the Python of a page, block after block in one module, which is there meanwhile; gives its names."""
    name = f"python_of_{page.stem}"
    module = types.ModuleType(name)
    sys.modules[name] = module
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(page), "exec"), module.__dict__)
    yield module.__dict__
    del sys.modules[name]
