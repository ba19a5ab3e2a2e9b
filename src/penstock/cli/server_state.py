"""The state of a job of a server: the value of a key, and dumps that are fetched."""

from __future__ import annotations

import contextlib
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.target import asked_for
from penstock.errors import AlreadyThereError, PenstockError, UnknownIdError

if TYPE_CHECKING:
    from penstock.client.http import Server

__all__ = ["fetch_dump", "id_in_path", "value_on_server"]

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def id_in_path(text: str) -> str:
    """An id that may stand in a path; UnknownIdError for what is none."""
    if not _ID.fullmatch(text):
        raise UnknownIdError(f"{text!r} is no id. A server knows no places, only ids.")
    return text


def value_on_server(
    server: Server, job_id: str, step: str, key: str, batch: int | None
) -> dict[str, Any] | None:
    """What a step holds for a key, by the names of its states; None when it holds nothing."""
    path = f"/v1/jobs/{job_id}/state/keys"
    items = server.patient_get(path, step=step, key=key, batch=batch)["items"]
    if not items:
        return None
    (found,) = items
    if found["values"] is None:
        raise ServerValueError(
            f"The key holds {found['bytes']:,} bytes, which is more than a server tells. Use penstock state dump."
        )
    inner = {f"@{name}": found[name] for name in ("timers", "windows") if found[name] is not None}
    return {**found["values"], **inner}


class ServerValueError(PenstockError):
    """A value is too large to be told."""

    fault = "user"


def fetch_dump(server: Server, job_id: str, wanted: dict[str, Any], folder: Path, timeout_s: float) -> str:
    """Let the server dump the state, and fetch the dump into a new folder; gives its id. The server keeps no copy.

    Raises AlreadyThereError for a folder that has something in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AlreadyThereError(f"{folder} is there already, and is not empty. Name a new folder.")
    result = asked_for(
        server, server.change("POST", f"/v1/jobs/{job_id}/state/dumps", wanted), timeout_s=timeout_s
    )
    assert result is not None
    dump_id: str = result["id"]
    with contextlib.closing(tempfile.TemporaryFile()) as file:
        server.download(f"/v1/dumps/{dump_id}", file)
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            # It leaves out what would lead out of the folder.
            archive.extractall(folder)
    server.change("DELETE", f"/v1/dumps/{dump_id}")
    return dump_id
