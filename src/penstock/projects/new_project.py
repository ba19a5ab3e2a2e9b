"""A new project: the template's files under the project's name."""

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
# The template is Python that can be read and checked as it stands, so it has names in place of marks.
_PACKAGE: Final = "project_name"
_NAME: Final = "project-name"
_VERSION: Final = "0.0.0"
# What else stands in the project's folder, or comes there when its commands are run.
_OTHERS: Final = ("job", "out", "sample", "state", "tests")


class ProjectError(PenstockError):
    """A project cannot be made under a name, or in a folder."""

    fault = "user"


@dataclass(frozen=True)
class NewProject:
    """A project: its name, its folder, its package, and its files, relative to the folder."""

    name: str
    folder: Path
    package: str
    files: tuple[str, ...]


def make_project(folder: Path) -> NewProject:
    """Make a project in a folder, whose name becomes that of the project and of its package.

    Raises ProjectError when the name cannot be a package, or the folder is not empty or cannot be written.
    """
    folder = folder.expanduser().absolute()
    package = package_of(folder.name)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ProjectError(f"The folder {folder} is not empty. Choose another name, or empty it first.")
        files = tuple(
            _written(path, folder, package) for path in sorted(_TEMPLATE.rglob("*")) if _is_part(path)
        )
    except OSError as e:
        raise ProjectError(
            f"The project cannot be written to {folder} ({e.strerror or e}). Choose another folder."
        ) from e
    return NewProject(folder.name, folder, package, files)


def package_of(name: str) -> str:
    """The package of a project, as Python imports it.

    >>> package_of("water-level")
    'water_level'

    Raises ProjectError when there can be none, or it would hide a module that is there.
    """
    package = name.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]|[A-Za-z]", name) or keyword.iskeyword(package):
        raise ProjectError(
            f"{name!r} cannot be the name of a package. Use letters, digits, dashes and underscores, a letter first, "
            "and no word of the language."
        )
    if package in _OTHERS or is_module_taken(package):
        raise ProjectError(
            f"{name!r} would hide another module or folder named {package}. Choose another name."
        )
    return package


def _is_part(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _written(path: Path, folder: Path, package: str) -> str:
    """Write a file of the template; gives its place in the project."""
    place = str(path.relative_to(_TEMPLATE)).replace(_PACKAGE, package)
    if place == "gitignore":
        # Under its own name it would hide files of the template itself.
        place = ".gitignore"
    text = path.read_text().replace(_PACKAGE, package).replace(_NAME, folder.name)
    target = folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(f"penstock>={_VERSION}", f"penstock>={__version__}"))
    return place
