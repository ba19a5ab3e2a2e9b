"""The cache folder: where penstock keeps what it fetched once."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import PenstockError

__all__ = ["CacheFolderError", "cache_folder"]


class CacheFolderError(PenstockError):
    """The cache folder cannot be made."""

    fault = "user"


def cache_folder() -> Path:
    """The folder named by PENSTOCK_CACHE, else `penstock` in the user's cache folder; made when missing."""
    named = os.environ.get("PENSTOCK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named).expanduser().absolute() if named else Path(base) / "penstock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CacheFolderError(
            f"The cache folder {folder} cannot be made: {e.strerror}. Name a writable one in PENSTOCK_CACHE."
        ) from e
    return folder
