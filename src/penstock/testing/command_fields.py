"""Command fields: the optional fields of a command in a test."""

from __future__ import annotations

import datetime as dt
from typing import TypedDict

from penstock.control.commands import Apply

__all__ = ["CommandFields"]


class CommandFields(TypedDict, total=False):
    """The optional fields of a command, in addition to kind, target and payload; see `Command`."""

    id: str
    version: int
    issued_by: str
    effective_at: dt.datetime
    expires_at: dt.datetime
    apply: Apply
