"""penstock: dynamically controlled streams on Apache Spark.

The public names stand in `__init__.pyi`, for type checkers and for this module. A name is imported when it is first
used: a command that describes no job needs none, and starts sooner.
"""

import importlib

from penstock.base.version import __version__ as __version__

# Lines such as `from penstock.launch.job import Job as Job`.
_LINES = __loader__.get_data(f"{__path__[0]}/__init__.pyi").decode().splitlines()
_MODULE_OF = {line.split()[-1]: line.split()[1] for line in _LINES if line.startswith("from penstock.")}

__all__ = sorted(_MODULE_OF, key=lambda name: (not name.isupper(), name))


def __getattr__(name: str) -> object:
    """Import a public name (PEP 562)."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List public names as well, imported or not."""
    return sorted({*globals(), *__all__})
