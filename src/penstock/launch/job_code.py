"""Job code: the user's modules that are loaded in this process, which the workers need too."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Final

__all__ = ["loaded_modules"]

_INSTALLED: Final = tuple(
    str(Path(path).resolve()) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}
)
_OWN: Final = str(Path(__file__).resolve().parents[1])


def loaded_modules(root: Path) -> tuple[Path, ...]:
    """The modules below a folder of the import path that are loaded; not those that are installed.

    What stands in `__main__` travels by value, and needs no file.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(root) and not str(path).startswith((*_INSTALLED, _OWN)):
            found.add(path)
    return tuple(sorted(found))
