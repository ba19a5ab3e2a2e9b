"""Job code: the user's modules that are loaded in this process and that the workers need too."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["find_loaded_modules"]

_INSTALLED: Final = tuple(
    str(Path(path).resolve()) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}
)
_OWN: Final = str(Path(__file__).resolve().parents[1])


def find_loaded_modules(functions: Iterable[Any]) -> dict[str, Path]:
    """Return the loaded modules from the folder of the program or of one of the functions, which may be classes.

    The keys are paths below a folder of the import path: `rules/one.py` for the module `rules.one`. Names are those of
    the import system, since folders do not tell which of them is on the import path.

    Installed modules are left out. So is `__main__`, whose content is pickled by value and needs no file.
    """
    roots = {Path(sys.path[0] or ".").resolve()}
    for function in functions:
        name = getattr(function, "__module__", None) or type(function).__module__
        module = sys.modules.get(name)
        if module is not None and (file := _file(module)) is not None:
            roots.add(file.parents[name.count(".") + (file.name == "__init__.py")])
    found = {}
    for name, module in list(sys.modules.items()):
        file = _file(module)
        if file is not None and any(file.is_relative_to(root) for root in roots):
            below = name.replace(".", "/")
            found[f"{below}/__init__.py" if file.name == "__init__.py" else f"{below}.py"] = file
    return dict(sorted(found.items()))


def _file(module: ModuleType) -> Path | None:
    """Return the file of a user's module, or None for other modules."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    return None if str(path).startswith((*_INSTALLED, _OWN)) else path
