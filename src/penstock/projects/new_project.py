"""New project: the files of a template under the name of the project."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.base.version import __version__
from penstock.errors import PenstockError
from penstock.jobs.job_loader import is_module_taken

__all__ = ["NewProject", "ProjectError", "make_project"]

_TEMPLATE: Final = Path(__file__).with_name("template")
_SQL_TEMPLATE: Final = Path(__file__).with_name("sql_template")
# Templates are valid Python and SQL that can be read and checked as they are, so they have names, no placeholders.
_PACKAGE: Final = "project_name"
_NAME: Final = "project-name"
_VERSION: Final = "0.0.0"
# Other entries of the project's folder, some of them created when its commands run.
_OTHERS: Final = ("job", "out", "sample", "state", "tests")


class ProjectError(PenstockError):
    """A project cannot be created with a name or in a folder."""

    fault = "user"


@dataclass(frozen=True)
class NewProject:
    """A new project: its name, its folder, its package, and its files relative to the folder.

    A project in SQL has no package, but its files are named like one.
    """

    name: str
    folder: Path
    package: str
    files: tuple[str, ...]


def make_project(folder: Path, *, in_sql: bool = False) -> NewProject:
    """Create a project in a folder. The name of the folder becomes that of the project and of its package.

    Its job is in Python, or `in_sql`.

    Raises ProjectError when the name cannot be that of a package, or when the folder is not empty or cannot be written.
    """
    folder = folder.expanduser().absolute()
    package = package_of(folder.name)
    template = _SQL_TEMPLATE if in_sql else _TEMPLATE
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ProjectError(f"The folder {folder} is not empty. Choose another name, or empty it first.")
        files = tuple(
            _write(path, template, folder, package) for path in sorted(template.rglob("*")) if _is_part(path)
        )
    except OSError as e:
        raise ProjectError(
            f"The project cannot be written to {folder} ({e.strerror or e}). Choose another folder."
        ) from e
    return NewProject(folder.name, folder, package, files)


def package_of(name: str) -> str:
    """Return the name under which Python imports the package of a project.

    >>> package_of("water-level")
    'water_level'

    Raises ProjectError when the name cannot be that of a package, or would hide an existing module or folder.
    """
    package = name.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]|[A-Za-z]", name) or keyword.iskeyword(package):
        raise ProjectError(
            f"{name!r} cannot be the name of a package. Use letters, digits, dashes and underscores, start with a "
            "letter, and do not use a Python keyword."
        )
    if package in _OTHERS or is_module_taken(package):
        raise ProjectError(
            f"{name!r} would hide another module or folder named {package}. Choose another name."
        )
    return package


def _is_part(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _write(path: Path, template: Path, folder: Path, package: str) -> str:
    """Write a file of the template and return its path in the project."""
    place = str(path.relative_to(template)).replace(_PACKAGE, package)
    if place == "gitignore":
        # Under its real name, git would ignore files of the template itself.
        place = ".gitignore"
    text = path.read_text().replace(_PACKAGE, package).replace(_NAME, folder.name)
    target = folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(f"penstock>={_VERSION}", f"penstock>={__version__}"))
    return place
