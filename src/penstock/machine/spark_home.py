"""Spark's folder for drivers of clusters: a copy of links, with a PySpark that Python need not compile."""

from __future__ import annotations

import hashlib
import importlib.util
import py_compile
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from penstock.machine.cache import cache_folder

__all__ = ["quick_spark_home"]

_ZIP: Final = Path("python/lib/pyspark.zip")
# Half of PySpark's code, which no process of a query imports.
_UNUSED: Final = tuple(
    f"pyspark/{name}/"
    for name in (
        "ml",
        "mllib",
        "pandas",
        "pipelines",
        "sql/connect",
        "sql/tests",
        "streaming",
        "testing",
        "tests",
    )
)


def quick_spark_home(home: Path) -> Path:
    """Return a folder with all of Spark's files, and the bytecode of PySpark's modules next to their source.

    About ten Python processes start on the driver's machine before the first result. Spark puts its own zip of PySpark
    at the front of their import path. It has no bytecode, and Python keeps none of what it imports from a zip, so each
    process would compile PySpark again, in 0.8 s. A Python of another version compiles the source as before.

    The folder is kept in the cache. A folder without that zip is returned as it is.
    """
    source = home / _ZIP
    if not source.is_file():
        return home
    found = source.stat()
    entries = [sorted(entry.name for entry in folder.iterdir()) for folder in (home, *source.parents[:2])]
    key = repr((str(home), entries, found.st_size, found.st_mtime_ns, importlib.util.MAGIC_NUMBER))
    place = cache_folder() / "spark" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not place.is_dir():
        _build(home, place)
    return place


def _build(home: Path, place: Path) -> None:
    """Write the folder so that other processes see none of it, or all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as temporary:
        new = Path(temporary) / "home"
        _link_entries(home, new, besides="python")
        _link_entries(home / "python", new / "python", besides="lib")
        _link_entries(home / "python/lib", new / "python/lib", besides=_ZIP.name)
        _add_bytecode(home / _ZIP, new / _ZIP, Path(temporary) / "code")
        try:
            new.rename(place)
        except OSError:
            # Another process was first.
            if not place.is_dir():
                raise


def _link_entries(source: Path, target: Path, besides: str) -> None:
    """Create a folder with a link to each entry of another one, but for the one of that name."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.name != besides:
            (target / entry.name).symlink_to(entry)


def _add_bytecode(source: Path, target: Path, folder: Path) -> None:
    """Copy a zip of modules, and add bytecode that is valid whatever their times. `folder` is for its files."""
    shutil.copyfile(source, target)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        for name in archive.namelist():
            if not name.endswith(".py") or name.startswith(_UNUSED):
                continue
            code = py_compile.compile(
                archive.extract(name, folder),
                f"{folder / name}c",
                f"{target.name}/{name}",
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            assert code is not None
            archive.write(code, f"{name}c")
