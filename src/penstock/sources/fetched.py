"""Fetched files: a file that a command refers to is read once and kept, so that a replay sees the same content."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from penstock.base.durable import write_once
from penstock.control.commands import CommandError
from penstock.errors import ExternalSystemError
from penstock.objects.allowed import AllowedPlaces, PlaceRefusedError

__all__ = ["FetchedFiles"]

_REFUSALS: Final = (CommandError, PlaceRefusedError, ExternalSystemError)
_MAX_KEPT: Final = 1000
# The clocks of the machines that write a checkpoint may differ.
_CLOCKS_DIFFER_S: Final = 3600


@dataclass(frozen=True)
class FetchedFiles:
    """Files and objects that commands refer to, kept in a folder of the checkpoint.

    Without a folder that all tasks reach, commands may refer to none.
    `max_bytes` is the largest size that is read. `allowed` lists the places that commands may have the job read and
    write.
    """

    folder: str | None
    max_bytes: int
    allowed: AllowedPlaces

    def json_of(self, uri: str, place: str, command_id: str) -> bytes:
        """Return the content of a JSON or YAML file or object as JSON.

        Returns again what was read for the same command (its place and id), whatever the file contains by now.
        Raises CommandError when it may not or cannot be read; the message quotes nothing of the content.
        Raises ExternalSystemError when the cause is not what the command names: memory, file handles, or the
        checkpoint's disk are exhausted.
        """
        return self.find_once(
            place, command_id, lambda: _as_json(uri, self.allowed.content(uri, self.max_bytes))
        )

    def check_write(self, uri: str, place: str, command_id: str) -> None:
        """Raise CommandError when the job may not write there. A replay gets the same answer."""

        def check() -> bytes:
            self.allowed.check_write(uri)
            return b"null"

        self.find_once(place, command_id, check)

    def find_once(self, place: str, command_id: str, found: Callable[[], bytes]) -> bytes:
        """Return the JSON that was found for a command (its place and id) the first time. A replay gets the same.

        `found` may raise CommandError, PlaceRefusedError or ExternalSystemError, which counts as found, too. Raises
        CommandError with its message.
        """
        if self.folder is None:
            raise CommandError(
                "a command may not name files or places, since the workers of the job share no folder in which to keep "
                "what they find there",
                command_id,
            )
        name = hashlib.sha256(f"{place}/{command_id}".encode()).hexdigest()
        kept = Path(self.folder) / f"{name}.json"
        try:
            if not kept.exists():
                # The first task decides what a replay sees.
                write_once(kept, _outcome(found))
                _forget(kept.parent)
            stored = kept.read_bytes()
        except (OSError, MemoryError) as e:
            what = e.strerror if isinstance(e, OSError) else "memory is out"
            raise ExternalSystemError(
                f"What the command {command_id!r} names cannot be read and kept in {self.folder} ({what}). Make room "
                "for the job, and start it again; it continues where it was."
            ) from e
        content = msgspec.json.decode(stored, type=dict[str, msgspec.Raw])
        if "error" in content:
            raise CommandError(msgspec.json.decode(content["error"], type=str), command_id)
        return bytes(content["content"])


def _forget(folder: Path) -> None:
    """Delete what was read before the oldest micro-batch that the checkpoint keeps, once there are many."""
    names = os.listdir(folder)  # noqa: PTH208  # only names are needed
    if len(names) <= _MAX_KEPT:
        return
    offsets = [path for path in (folder.parent / "offsets").glob("[0-9]*") if path.name.isdecimal()]
    if not offsets:
        return
    oldest_s = min(offsets, key=lambda path: int(path.name)).stat().st_mtime - _CLOCKS_DIFFER_S
    for path in map(folder.joinpath, names):
        # Another task may have deleted it.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest_s:
                path.unlink()


def _outcome(found: Callable[[], bytes]) -> bytes:
    """Return the content, or why it is missing: a failure is kept like a success, so that a replay fails alike."""
    try:
        content: dict[str, Any] = {"content": msgspec.Raw(found())}
    except _REFUSALS as e:
        content = {"error": str(e)}
    return msgspec.json.encode(content)


class _AliasError(yaml.YAMLError):
    """A file has an alias."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses aliases, which can turn a small file into a huge or endless one."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _AliasError
        return super().compose_node(parent, index)


def _as_json(uri: str, content: bytes) -> bytes:
    """Return the content of a file as JSON. Errors quote none of it: their reader may lack access to the file."""
    is_yaml = uri.endswith((".yaml", ".yml"))
    try:
        # The loader is the safe one, and accepts even less.
        found = yaml.load(content, _Loader) if is_yaml else msgspec.json.decode(content)  # noqa: S506
        encoded = msgspec.json.encode(found)
    except MemoryError:
        raise
    except RecursionError:
        raise CommandError(f"{uri!r} cannot be parsed: it is nested too deeply") from None
    except _AliasError:
        raise CommandError(f"{uri!r} cannot be parsed: aliases (*name) are not supported") from None
    except Exception:
        # YAML's dates, numbers and keys may raise anything when they make no sense.
        raise CommandError(f"{uri!r} cannot be parsed: it is not {'YAML' if is_yaml else 'JSON'}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CommandError(f"{uri!r} must contain an object of settings and their values")
    return encoded
