"""Job loader: find the job in a Python file, or describe that of a SQL file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from penstock.errors import JobDefinitionError, PenstockError
from penstock.streams.job_description import JobDescription

__all__ = ["LoadedJob", "is_module_taken", "load_job"]

_MAX_MODULES: Final = 500


@dataclass(frozen=True)
class LoadedJob:
    """A job, with the modules and packages that its file may import and that the workers need, too."""

    job: JobDescription
    code: dict[str, Path]
    explanations: tuple[str, ...] = ()
    """What the EXPLAIN statements of a SQL file say."""


def load_job(target: str) -> LoadedJob:
    """Load the job of `FILE[:ATTR]`. Without ATTR a Python file must define exactly one `Job`.

    Imports the file as a module, with its folder on the import path, so it may import its neighbours. Raises
    JobDefinitionError, which names the line at fault, when the file cannot be loaded.
    """
    name, _, attribute = target.partition(":")
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise JobDefinitionError(f"There is no job file {name}. Correct its path.")
    if path.suffix == ".sql":
        if attribute:
            raise JobDefinitionError(f"A SQL file is one job; leave out {':' + attribute!r}.")
        return _describe(path)
    if path.suffix != ".py":
        raise JobDefinitionError(f"{name} is not a job file, which ends in .py or .sql.")
    module = _import(path)
    job = _attribute(module, attribute, name) if attribute else _only_job(module, name)
    return LoadedJob(job, _list_modules(path))


def _describe(path: Path) -> LoadedJob:
    """Describe the job of a SQL file, named after the file."""
    # The parser is loaded only for those who use it.
    from penstock.sql.job_planner import SqlOptions, describe_sql

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise JobDefinitionError(
            f"{path.name} is not text in UTF-8: byte {e.start} is wrong. Save the file as UTF-8."
        ) from None
    # Connectors may stand beside the file, as beside a job file in Python.
    _import_from(path.parent)
    job = JobDescription(path.stem)
    used: list[str] = []

    def load(place: str) -> Any:
        found = _named_function(path.parent, place)
        used.append(place)
        return found

    try:
        result = describe_sql(job, text, SqlOptions(load=load, to_sink=True))
    except PenstockError as e:
        raise type(e)(f"{path.name}: {e}") from e
    return LoadedJob(job, _list_modules(path) if used else {}, result.explanations)


def _named_function(folder: Path, place: str) -> Any:
    """Return the object that `module:object` names. The module must be a file in the folder."""
    name, _, attribute = place.partition(":")
    if not name.isidentifier() or not attribute.isidentifier():
        raise JobDefinitionError(f"{place!r} is not the place of a function, such as 'rules:is_valid'.")
    file = folder / f"{name}.py"
    if not file.is_file():
        raise JobDefinitionError(
            f"There is no file {file.name} beside the SQL file; functions come only from its folder."
        )
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != str(file):
        module = _import(file)
    found = getattr(module, attribute, None)
    if found is None:
        raise JobDefinitionError(f"{file.name} has no {attribute!r}. Define it there, or correct the name.")
    return found


def _list_modules(path: Path) -> dict[str, Path]:
    """List the modules and packages in the folder of a job file, by their paths below it."""
    packages = sorted(init.parent for init in path.parent.glob("*/__init__.py"))
    # The job file is a module of its own, even if its folder is a package.
    beside = [one for one in sorted(path.parent.glob("*.py")) if one.name != "__init__.py"]
    modules = [*beside, *(m for p in packages for m in sorted(p.rglob("*.py")))]
    if len(modules) > _MAX_MODULES:
        raise JobDefinitionError(
            f"There are {len(modules)} Python files in and under {path.parent}, and all would go to the workers; the "
            f"limit is {_MAX_MODULES}. Give the job file a folder of its own."
        )
    return {module.relative_to(path.parent).as_posix(): module for module in modules}


def _import(path: Path) -> ModuleType:
    if not path.stem.isidentifier() or is_module_taken(path.stem):
        raise JobDefinitionError(
            f"The job file {path.name} must have a name that Python can import and that no installed module has; "
            "rename it, for example to job.py."
        )
    _import_from(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Workers import the job's classes under this name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as e:
        raise JobDefinitionError(
            f"{path.name}{_line_of(e, path)}: this ends Python; a job file only describes a job."
        ) from e
    except PenstockError as e:
        raise type(e)(f"{path.name}{_line_of(e, path)}: {e}") from e
    except Exception as e:  # a job file may raise anything
        raise JobDefinitionError(f"{path.name}{_line_of(e, path)}: {type(e).__name__}: {e}") from e
    return module


def _import_from(folder: Path) -> None:
    """Let modules in a folder be imported."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def is_module_taken(name: str) -> bool:
    """Return whether a module of that name would hide one that penstock or the job may import."""
    return (
        name == "penstock"
        or name in sys.stdlib_module_names
        or PathFinder.find_spec(name, _package_folders()) is not None
    )


def _package_folders() -> list[str]:
    """Return the folders with installed packages. Reading all names from their metadata takes a quarter of a second."""
    return [entry for entry in sys.path if any(Path(entry).glob("*.dist-info"))]


def _line_of(error: BaseException, path: Path) -> str:
    """Format the last line of the file that led to the error, to append to the file's name."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f", line {lines[-1]}" if lines else ""


def _attribute(module: ModuleType, attribute: str, name: str) -> JobDescription:
    found = getattr(module, attribute, None)
    if not isinstance(found, JobDescription):
        known = (
            ", ".join(sorted(key for key, value in vars(module).items() if isinstance(value, JobDescription)))
            or "none"
        )
        raise JobDefinitionError(f"{name} has no job named {attribute!r}; jobs in it: {known}.")
    return found


def _only_job(module: ModuleType, name: str) -> JobDescription:
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, JobDescription)}
    distinct = {id(job): job for job in jobs.values()}
    if not distinct:
        raise JobDefinitionError(f"{name} defines no job. Write job = ps.Job('name') at its top level.")
    if len(distinct) > 1:
        raise JobDefinitionError(
            f"{name} defines several jobs; choose one: {name}:{', '.join(sorted(jobs))}."
        )
    return next(iter(distinct.values()))
