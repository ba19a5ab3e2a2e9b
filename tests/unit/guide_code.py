"""The Python of a guide, which tests run as its readers would."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["python_of"]


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
