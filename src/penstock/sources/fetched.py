"""Fetched files: what a command refers to is read once and kept, so that a replay sees the same."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from penstock.control.commands import CommandError
from penstock.durable import make_folder, sync_folder
from penstock.sources.objects import OBJECT_SCHEMES, ObjectError, read_object

__all__ = ["FetchedFiles"]


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
            outcome = self._outcome(uri)
            make_folder(kept.parent)
            new = kept.with_name(f".{name}-{uuid.uuid4().hex}")
            with new.open("wb") as file:
                file.write(outcome)
                file.flush()
                os.fsync(file.fileno())
            # Whoever comes first decides what a replay sees.
            try:
                os.link(new, kept)
            except FileExistsError:
                pass
            finally:
                new.unlink()
            sync_folder(kept.parent)
        found = msgspec.json.decode(kept.read_bytes(), type=dict[str, msgspec.Raw])
        if "error" in found:
            raise CommandError(msgspec.json.decode(found["error"], type=str), command_id)
        return bytes(found["content"])

    def _outcome(self, uri: str) -> bytes:
        """The content, or why there is none: a failure is kept like a success, so that a replay fails alike."""
        try:
            content: dict[str, Any] = {"content": msgspec.Raw(_as_json(uri, self._read(uri)))}
        except (CommandError, ObjectError) as e:
            content = {"error": str(e)}
        return msgspec.json.encode(content)

    def _read(self, uri: str) -> bytes:
        scheme, colon, rest = uri.partition("://")
        if colon and scheme in OBJECT_SCHEMES:
            return read_object(uri, self.most_bytes)
        if colon and scheme != "file":
            known = ", ".join(("file", *OBJECT_SCHEMES))
            raise CommandError(f"{scheme}:// is nothing that can be read; known are {known}")
        return _file(rest if colon else uri, self.most_bytes)


def _at_once(path: str, flags: int) -> int:
    """Open without waiting, which a pipe would do for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _file(name: str, most_bytes: int) -> bytes:
    try:
        path = Path(name).expanduser()
        if not path.is_absolute():
            raise CommandError(f"{name!r} is no absolute path; the job does not run where you are")
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CommandError(f"{name!r} cannot be read: it is no regular file")
            content = file.read(most_bytes + 1)
    except OSError as e:
        raise CommandError(f"{name!r} cannot be read: {e.strerror or e}") from e
    except (ValueError, RuntimeError) as e:
        # A name with a zero byte, and the home of a user who is not there.
        raise CommandError(f"{name!r} cannot be read: {e}") from e
    if len(content) > most_bytes:
        raise CommandError(f"{name!r} is larger than {most_bytes} bytes")
    return content


class _Loader(yaml.SafeLoader):
    """YAML without aliases, with which a small file becomes a huge or an endless one."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken")
        return super().compose_node(parent, index)


def _yaml(content: bytes) -> Any:
    return yaml.load(content, _Loader)  # noqa: S506 - it is the safe loader, and takes even less


def _as_json(uri: str, content: bytes) -> bytes:
    """What a file holds as JSON."""
    try:
        found = _yaml(content) if uri.endswith((".yaml", ".yml")) else msgspec.json.decode(content)
        encoded = msgspec.json.encode(found)
    except RecursionError as e:
        raise CommandError(f"{uri!r} cannot be understood: it is nested too deep") from e
    except Exception as e:
        # YAML's dates, numbers and keys raise whatever they like when they make no sense.
        raise CommandError(f"{uri!r} cannot be understood: {' '.join(str(e).split())}") from e
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CommandError(f"{uri!r} must hold an object of settings and their values")
    return encoded
