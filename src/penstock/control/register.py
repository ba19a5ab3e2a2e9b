"""The register: which commands a step has taken, so that none is applied twice and no version goes back.

Every slot of a step keeps one. All see the commands for the step in the same order, so they decide alike; only the
versions of single keys are kept by the slot that has the key alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import xxhash

from penstock.control.commands import Command

__all__ = ["DEFAULT_IDS_KEPT", "Refusal", "Register", "merged_registers"]

DEFAULT_IDS_KEPT: Final = 100_000

# Ids are kept as their hashes (XXH3, 128 bits), which take less room than most ids do.
_DIGEST_BYTES: Final = 16

# Scopes whose versions are kept side by side: a command to a step says nothing about the step's keys.
_KEYED: Final = "keyed"


class Refusal(msgspec.Struct, frozen=True):
    """Why a command is not applied. A duplicate is no news: it has its receipt already."""

    reason: str
    duplicate: bool = False


class _Stored(msgspec.Struct, array_like=True):
    ids: bytes
    versions: list[tuple[str, str, int]]
    key_versions: list[tuple[str, Any, int]]


class Register:
    """What one slot of a step knows about commands. `stored` is what an earlier `dump` gave, or None."""

    def __init__(self, stored: bytes | None = None, ids_kept: int = DEFAULT_IDS_KEPT) -> None:
        found = _Stored(b"", [], []) if stored is None else msgspec.msgpack.decode(stored, type=_Stored)
        ids = found.ids
        self._ids = dict.fromkeys(ids[i : i + _DIGEST_BYTES] for i in range(0, len(ids), _DIGEST_BYTES))
        self._ids_kept: Final = ids_kept
        self._versions = {(kind, scope): version for kind, scope, version in found.versions}
        self._key_versions = {(kind, _hashable(key)): version for kind, key, version in found.key_versions}
        self.changed = False

    def seen(self, command_id: str) -> bool:
        """Take note of an id; whether it was known before."""
        digest = xxhash.xxh3_128_digest(command_id.encode())
        if digest in self._ids:
            return True
        self._ids[digest] = None
        self.changed = True
        return False

    def admit(self, command: Command, now: dt.datetime) -> Refusal | None:
        """Take note of a command; a Refusal when it must not be applied. `now` is the time of the micro-batch."""
        if self.seen(command.id):
            return Refusal("the id was seen before", duplicate=True)
        if command.expires_at is not None and command.expires_at <= now:
            return Refusal(f"it expired at {command.expires_at.isoformat()}")
        if command.version is None or command.target.scope in ("key", "keys"):
            return None
        scope = _KEYED if command.target.scope == "all" else command.target.scope
        newest = self._versions.get((command.kind, scope), -1)
        if command.version < newest:
            return Refusal(stale(command.version, newest))
        self._versions[command.kind, scope] = command.version
        return None

    def stale_key(self, command: Command, key: Any) -> Refusal | None:
        """For one key of an admitted command: a Refusal when the key has seen a newer version."""
        if command.version is None:
            return None
        to_all = self._versions.get((command.kind, _KEYED), -1)
        newest = max(self._key_versions.get((command.kind, _plain(key)), -1), to_all)
        return Refusal(stale(command.version, newest)) if command.version < newest else None

    def note_key(self, command: Command, key: Any) -> None:
        """A command was applied to a key, which sees no older version from now on."""
        if command.version is not None and command.target.scope != "all":
            self._key_versions[command.kind, _plain(key)] = command.version
            self.changed = True

    def dump(self) -> bytes:
        """The register as bytes, the same for the same history; the oldest ids are left out when there are too many."""
        ids = list(self._ids)[-self._ids_kept :]
        versions = [(kind, scope, version) for (kind, scope), version in self._versions.items()]
        key_versions = [(kind, key, version) for (kind, key), version in self._key_versions.items()]
        return msgspec.msgpack.encode(_Stored(b"".join(ids), versions, key_versions))


def merged_registers(stored: Sequence[bytes]) -> bytes:
    """The registers of all slots of a step as one: they differ only in the versions of single keys."""
    found = [msgspec.msgpack.decode(register, type=_Stored) for register in stored]
    # A slot that was idle when ids came has seen them all the same, but for one that has never run.
    longest = max(found, key=lambda register: len(register.ids))
    versions: dict[tuple[str, str], int] = {}
    # After a rescaling every slot has the versions of all keys, of which only its own go on.
    key_versions: dict[tuple[str, bytes], tuple[str, Any, int]] = {}
    for register in found:
        for kind, scope, version in register.versions:
            versions[kind, scope] = max(version, versions.get((kind, scope), -1))
        for kind, key, version in register.key_versions:
            name = kind, msgspec.msgpack.encode(key)
            if version >= key_versions.get(name, ("", None, -1))[2]:
                key_versions[name] = (kind, key, version)
    return msgspec.msgpack.encode(
        _Stored(
            longest.ids,
            [(kind, scope, version) for (kind, scope), version in sorted(versions.items())],
            [key_versions[name] for name in sorted(key_versions)],
        )
    )


def stale(version: int, newest: int) -> str:
    """The reason for which an old version is refused."""
    return f"version {version} is stale: version {newest} has been applied"


def _plain(key: Any) -> Any:
    """A key as it comes back from storage."""
    return _hashable(msgspec.to_builtins(key))


def _hashable(key: Any) -> Any:
    """A key of several fields is a tuple, which comes back from storage as a list."""
    return tuple(key) if isinstance(key, list) else key
