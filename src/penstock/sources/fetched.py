"""Fetched files: a file that a command refers to is read once and kept, so that a replay sees the same content."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from penstock.base.durable import write_once
from penstock.control.commands import CommandError
from penstock.errors import ExternalSystemError
from penstock.objects.allowed import AllowedPlaces, PlaceRefusedError
from penstock.objects.object_folder import AT_WORK, ObjectFolder
from penstock.objects.object_stores import Place

__all__ = ["FetchedFiles", "KeptInFolder", "KeptInStore", "kept_name"]

_REFUSALS: Final = (CommandError, PlaceRefusedError, ExternalSystemError)
_MAX_KEPT: Final = 1000
# The clocks of the machines that write a checkpoint may differ.
_CLOCKS_DIFFER_S: Final = 3600


@dataclass(frozen=True)
class KeptInFolder:
    """The fetched contents, in a folder that all tasks reach."""

    folder: str

    def find(self, name: str) -> bytes | None:
        """Return the content under a name. Raises OSError."""
        try:
            return (Path(self.folder) / name).read_bytes()
        except FileNotFoundError:
            return None

    def keep_first(self, name: str, content: bytes) -> None:
        """Keep a content, unless another task was quicker. Raises OSError."""
        kept = Path(self.folder) / name
        write_once(kept, content)
        _forget(kept.parent)


@dataclass(frozen=True)
class KeptInStore:
    """The fetched contents, as objects that are created once below a place. `settings` are as in ObjectFolder."""

    place: Place
    settings: Mapping[str, str]

    def find(self, name: str) -> bytes | None:
        """Return the content under a name. Raises ExternalSystemError."""
        return self._objects.find(name)

    def keep_first(self, name: str, content: bytes) -> None:
        """Keep a content, unless another task was quicker. Raises ExternalSystemError."""
        self._objects.create(name, content)

    def remove(self, names: Sequence[str]) -> None:
        """Remove what no task can ask for again. Raises ExternalSystemError."""
        self._objects.remove(names)

    @property
    def _objects(self) -> ObjectFolder:
        return ObjectFolder(self.place, self.settings, AT_WORK)


@dataclass(frozen=True)
class FetchedFiles:
    """Files and objects that commands refer to, kept with the checkpoint.

    `max_bytes` is the largest size that is read. `allowed` lists the places that commands may have the job read and
    write.
    """

    kept: KeptInFolder | KeptInStore
    max_bytes: int
    allowed: AllowedPlaces

    def json_of(self, uri: str, place: str, command_id: str) -> bytes:
        """Return the content of a JSON or YAML file or object as JSON.

        For the same command (its place and id) it returns the same content again, even if the file has changed.
        Raises CommandError when it may not or cannot be read; the message quotes nothing of the content.
        Raises ExternalSystemError when the cause is not what the command names: memory, file handles, or the
        checkpoint's disk are exhausted.
        """
        return self.find_once(
            place, command_id, lambda: _as_json(uri, self.allowed.content(uri, self.max_bytes))
        )

    def check_write(self, uri: str, place: str, command_id: str) -> None:
        """Raise CommandError when the job may not write to a place. A replay gets the same answer."""

        def check() -> bytes:
            self.allowed.check_write(uri)
            return b"null"

        self.find_once(place, command_id, check)

    def find_once(self, place: str, command_id: str, found: Callable[[], bytes]) -> bytes:
        """Return the JSON that was found for a command (its place and id) the first time. A replay gets the same.

        `found` may raise CommandError, PlaceRefusedError or ExternalSystemError, which counts as found, too. Raises
        CommandError with its message.
        """
        name = kept_name(place, command_id)
        try:
            stored = self.kept.find(name)
            if stored is None:
                # The first task decides what a replay sees.
                self.kept.keep_first(name, _outcome(found))
                stored = self.kept.find(name)
                assert stored is not None
        except (OSError, MemoryError) as e:
            what = e.strerror if isinstance(e, OSError) else "memory is out"
            raise ExternalSystemError(
                f"What the command {command_id!r} names cannot be read and kept with the checkpoint ({what}). Make "
                "room for the job, and start it again; it continues where it was."
            ) from e
        content = msgspec.json.decode(stored, type=dict[str, msgspec.Raw])
        if "error" in content:
            raise CommandError(msgspec.json.decode(content["error"], type=str), command_id)
        return bytes(content["content"])


def kept_name(place: str, command_id: str) -> str:
    """Return the name under which is kept what was found for a command.

    >>> kept_name("0-17", "cade42f7")[:12]
    'dceaf8d705a1'
    """
    return f"{hashlib.sha256(f'{place}/{command_id}'.encode()).hexdigest()}.json"


def _forget(folder: Path) -> None:
    """Delete contents from before the oldest micro-batch that the checkpoint keeps, once they are many."""
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
        found = yaml.load(content, _Loader) if is_yaml else msgspec.json.decode(content)  # noqa: S506  # _Loader is a safe loader
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
