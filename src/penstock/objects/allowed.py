"""Allowed places: the files and addresses that a command may have a job open. None, except those in the run's settings.

The sender of a command may have fewer rights than the user of the job. So a place counts only in one plain form, it is
compared part by part, and exactly the place that was compared is opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, unquote

from penstock.errors import JobDefinitionError, PenstockError
from penstock.objects.objects import OBJECT_SCHEMES, read_object

__all__ = ["WEB_SCHEMES", "AllowedPlaces", "PlaceRefusedError"]

WEB_SCHEMES: Final = ("http", "https")
_FILE: Final = "file"
_MAX_CHARACTERS: Final = 4096
_HOST: Final = re.compile(r"[a-z0-9._-]+(:\d{1,5})?|\[[0-9a-f:.]+\](:\d{1,5})?")
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]+")
_NEVER: Final = ("", ".", "..")
# Errors of a worker that lacks resources, whichever file is named.
_OF_WORKER: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_NOT_READ: Final = (
    "the job may not read the place that the command names; --allow-read of its run, or allow_read in its definition, "
    "lists the places that it may read"
)
_NOT_WRITTEN: Final = (
    "the job may not write to the place that the command names; --allow-write of its run, or allow_write in its "
    "definition, lists the places that it may write to"
)


class PlaceRefusedError(PenstockError):
    """A place is not allowed, or cannot be read.

    The message for a place that is not allowed is the same whether it exists or not.
    """

    fault = "user"


@dataclass(frozen=True)
class _Place:
    """A place in its plain form: a file has no host, and the bucket of an object is its host."""

    scheme: str
    host: str
    parts: tuple[str, ...]

    @property
    def uri(self) -> str:
        """The URI that names this place, with the same meaning."""
        name = "/".join(self.parts)
        if self.scheme == _FILE:
            return f"/{name}"
        return f"{self.scheme}://{self.host}/{quote(name) if self.scheme in WEB_SCHEMES else name}"

    def holds(self, other: _Place) -> bool:
        """Return whether another place is this one, or inside it."""
        here = (self.scheme, self.host, self.parts)
        return here == (other.scheme, other.host, other.parts[: len(self.parts)])


@dataclass(frozen=True)
class AllowedPlaces:
    """The places that a job may read from and write to when a command says so. None, unless they are named here."""

    read: tuple[_Place, ...] = ()
    write: tuple[_Place, ...] = ()

    @classmethod
    def of(cls, read: Iterable[str], write: Iterable[str]) -> Self:
        """Build from files, folders and addresses, each with all that is below it. Raises JobDefinitionError."""
        known = (_FILE, *OBJECT_SCHEMES)
        return cls(
            tuple(_prefix("allow_read", text, (*known, *WEB_SCHEMES)) for text in read),
            tuple(_prefix("allow_write", text, known) for text in write),
        )

    def content(self, uri: str, max_bytes: int) -> bytes:
        """Return the content of a file or object.

        Raises PlaceRefusedError, and ExternalSystemError when the server does not answer.
        """
        place, prefix = _allowed(uri, self.read, _NOT_READ)
        if place.scheme == _FILE:
            return _file(place, prefix, max_bytes)
        if place.scheme in WEB_SCHEMES:
            # Jobs that use no web server need not load it.
            from penstock.objects.web import read_web

            return read_web(place.uri, max_bytes)
        return read_object(place.uri, max_bytes)

    def check_read(self, uri: str) -> None:
        """Raise PlaceRefusedError for a place that is not allowed. The place itself is not looked at."""
        _allowed(uri, self.read, _NOT_READ)

    def check_write(self, uri: str) -> None:
        """Raise PlaceRefusedError for a place that is not allowed. The place itself is not looked at."""
        _allowed(uri, self.write, _NOT_WRITTEN)

    def to_write(self, uri: str) -> str:
        """Return the place to write to, as it must be opened: a folder without links in its path."""
        place, prefix = _allowed(uri, self.write, _NOT_WRITTEN)
        if place.scheme != _FILE:
            return place.uri
        root, real = _real(prefix), _real(place)
        if _below(root, real) is None:
            raise PlaceRefusedError(_NOT_WRITTEN)
        return real


def _allowed(uri: str, prefixes: Iterable[_Place], refusal: str) -> tuple[_Place, _Place]:
    """Return a place, and the prefix that allows it."""
    place = _plain(uri)
    if place is not None and place.parts:
        for prefix in prefixes:
            if prefix.holds(place):
                return place, prefix
    raise PlaceRefusedError(refusal)


def _prefix(name: str, text: str, schemes: Iterable[str]) -> _Place:
    # A slash at the end marks a folder, which makes no difference here.
    place = _plain(text[:-1] if len(text) > 1 and text.endswith("/") and not text.endswith("//") else text)
    if place is None or place.scheme not in schemes:
        known = ", ".join(f"{scheme}://" for scheme in schemes if scheme != _FILE)
        raise JobDefinitionError(
            f"{name} has {text!r}, which does not name a place plainly. Give an absolute path, or an address that "
            f"begins with one of {known}; without '..', a user, or a query."
        )
    return place


def _plain(text: str) -> _Place | None:
    """Return the place that a text names; None when other programs could read it as another place."""
    if len(text) > _MAX_CHARACTERS or not text.isprintable():
        return None
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _make_place(_FILE, "", text)
    host, _, name = rest.partition("/")
    if scheme == _FILE:
        return None if host else _make_place(_FILE, "", "/" + _decode(name))
    if scheme in WEB_SCHEMES:
        host, name = host.lower() if host.isascii() else "", _decode(name)
        # Servers and libraries read these as something other than a part of the name.
        if not _HOST.fullmatch(host) or host.endswith(".") or any(character in name for character in "?#%\\"):
            return None
    elif scheme not in OBJECT_SCHEMES or not _is_bucket(scheme, host) or host in _NEVER:
        return None
    return _make_place(scheme, host, "/" + name)


def _is_bucket(scheme: str, host: str) -> bool:
    return bool((_HOST if scheme == "hdfs" else _BUCKET).fullmatch(host))


def _make_place(scheme: str, host: str, path: str) -> _Place | None:
    if path in ("", "/"):
        # Everything there is, which may be intended as a prefix.
        return _Place(scheme, host, ()) if path or host else None
    parts = tuple(path.split("/"))
    plain = not parts[0] and not any(part in _NEVER for part in parts[1:]) and path.isprintable()
    return _Place(scheme, host, parts[1:]) if plain else None


def _decode(name: str) -> str:
    try:
        found = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return "\0"
    # A slash that was escaped was not compared as one.
    return "\0" if found.count("/") != name.count("/") else found


def _real(place: _Place) -> str:
    return os.path.realpath(place.uri)


def _below(root: str, real: str) -> tuple[str, ...] | None:
    """Return the parts of a path below a folder: empty for the folder itself, None for a path elsewhere."""
    if real == root:
        return ()
    folder = root.rstrip("/") + "/"
    return tuple(real.removeprefix(folder).split("/")) if real.startswith(folder) else None


def _file(place: _Place, prefix: _Place, max_bytes: int) -> bytes:
    """Return the content of a file. Links are resolved, and must not lead out of what is allowed."""
    root, name = _real(prefix), place.uri
    parts = _below(root, _real(place))
    if parts is None:
        raise PlaceRefusedError(_NOT_READ)
    try:
        with open(_open_below(root, parts), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PlaceRefusedError(f"{name!r} cannot be read: it is not a regular file")
            content = file.read(max_bytes + 1)
    except OSError as e:
        if e.errno in _OF_WORKER:
            raise
        raise PlaceRefusedError(f"{name!r} cannot be read: {e.strerror or e}") from None
    if len(content) > max_bytes:
        raise PlaceRefusedError(f"{name!r} is larger than {max_bytes} bytes")
    return content


def _open_below(root: str, parts: tuple[str, ...]) -> int:
    """Open a file below a folder by a path without links; a link that was put there meanwhile is refused."""
    # Without O_NONBLOCK, a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    folder = os.open(root, flags | (os.O_DIRECTORY if parts else 0))
    for number, part in enumerate(parts, 1):
        try:
            inside = os.open(part, flags | (os.O_DIRECTORY if number < len(parts) else 0), dir_fd=folder)
        finally:
            os.close(folder)
        folder = inside
    return folder
