"""The cache folder: the files that penstock fetches or builds once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError

__all__ = ["CacheFolderError", "cache_folder", "cache_place", "write_whole"]


class CacheFolderError(PenstockError):
    """The cache folder cannot be created."""

    fault = "user"


def cache_place(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in PENSTOCK_CACHE, else `penstock` in the user's cache folder."""
    named = environment.get("PENSTOCK_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def cache_folder() -> Path:
    """Return the cache folder, which is created if it does not exist."""
    folder = cache_place()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CacheFolderError(
            f"The cache folder {folder} cannot be created: {e.strerror}. Set PENSTOCK_CACHE to a writable folder."
        ) from e
    return folder


def write_whole(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Write a file so that other processes see none of it, or all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    if executable:
        temporary.chmod(0o755)
    temporary.replace(path)
