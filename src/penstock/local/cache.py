"""The cache folder: where penstock keeps what it fetched once."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """The folder named by PENSTOCK_CACHE, else `penstock` in the user's cache folder; made when missing."""
    named = os.environ.get("PENSTOCK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named) if named else Path(base) / "penstock"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
