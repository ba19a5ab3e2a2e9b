"""Fetched files: what a command refers to is read once and kept, so that a replay sees the same."""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from penstock.control.commands import CommandError

__all__ = ["FetchedFiles"]

_CLOUD: Final = ("s3", "gs", "az", "abfs", "http", "https")


@dataclass(frozen=True)
class FetchedFiles:
    """Files and objects that commands refer to, kept in a folder of the checkpoint.

    `most_bytes` is the largest size that is read.
    """

    folder: str
    most_bytes: int

    def json_of(self, uri: str, place: str, command_id: str) -> bytes:
        """The content of a JSON or YAML file or object as JSON.

        What was read for the same command (its place and id) is given again, whatever stands in the file by now.
        CommandError when it cannot be read.
        """
        name = hashlib.sha256(f"{place}/{command_id}".encode()).hexdigest()
        kept = Path(self.folder) / f"{name}.json"
        if not kept.exists():
            content = self._outcome(uri)
            kept.parent.mkdir(parents=True, exist_ok=True)
            new = kept.with_name(f".{name}-{uuid.uuid4().hex}")
            with new.open("wb") as file:
                file.write(msgspec.json.encode(content))
                file.flush()
                os.fsync(file.fileno())
            # Whoever comes first decides what a replay sees.
            try:
                os.link(new, kept)
            except FileExistsError:
                pass
            finally:
                new.unlink()
        found = msgspec.json.decode(kept.read_bytes(), type=dict[str, msgspec.Raw])
        if "error" in found:
            raise CommandError(msgspec.json.decode(found["error"], type=str), command_id)
        return bytes(found["content"])

    def _outcome(self, uri: str) -> dict[str, Any]:
        """The content, or why there is none: a failure is kept like a success, so that a replay fails alike."""
        try:
            return {"content": _parsed(uri, self._read(uri))}
        except CommandError as e:
            return {"error": str(e)}

    def _read(self, uri: str) -> bytes:
        scheme, colon, rest = uri.partition("://")
        try:
            if colon and scheme in _CLOUD:
                return self._limited(uri, _object(uri))
            path = Path(rest if colon and scheme == "file" else uri).expanduser()
            if not path.is_absolute():
                raise CommandError(f"{uri!r} is no absolute path; the job does not run where you are")
            with path.open("rb") as file:
                return self._limited(uri, file.read(self.most_bytes + 1))
        except OSError as e:
            raise CommandError(f"{uri!r} cannot be read: {e.strerror or e}") from e

    def _limited(self, uri: str, content: bytes) -> bytes:
        if len(content) > self.most_bytes:
            raise CommandError(f"{uri!r} is larger than {self.most_bytes} bytes")
        return content


def _object(uri: str) -> bytes:
    import obstore
    from obstore.exceptions import BaseError

    base, _, name = uri.rpartition("/")
    try:
        store = obstore.store.from_url(base, client_options={"allow_http": True})
        return bytes(store.get(name).bytes())
    except (BaseError, ValueError) as e:
        raise CommandError(f"{uri!r} cannot be read: {str(e).splitlines()[0]}") from e


def _parsed(uri: str, content: bytes) -> dict[str, Any]:
    try:
        found = yaml.safe_load(content) if uri.endswith((".yaml", ".yml")) else msgspec.json.decode(content)
    except (msgspec.DecodeError, yaml.YAMLError) as e:
        raise CommandError(f"{uri!r} cannot be understood: {' '.join(str(e).split())}") from e
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CommandError(f"{uri!r} must hold an object of settings and their values")
    return found
