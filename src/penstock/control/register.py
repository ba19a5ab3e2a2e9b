"""The register: which commands a step has taken, so that none is applied twice and no version goes back.

Every slot of a step keeps one. All see the commands for the step in the same order, so they decide alike; only the
versions of single keys are kept by the slot that has the key alone.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash

from penstock.control.commands import Command

__all__ = ["DEFAULT_IDS_KEPT", "DEFAULT_KEYS_KEPT", "Refusal", "Register", "merged_registers"]

DEFAULT_IDS_KEPT: Final = 100_000
DEFAULT_KEYS_KEPT: Final = 100_000

# Ids are kept as their hashes (XXH3, 128 bits), which take less room than most ids do.
_DIGEST_BYTES: Final = 16

# Scopes whose versions are kept side by side: a command to a step says nothing about the step's keys.
_KEYED: Final = "keyed"


class Refusal(msgspec.Struct, frozen=True):
    """Why a command is not applied. A duplicate is not news: it has its receipt already."""

    reason: str
    duplicate: bool = False


class _Stored(msgspec.Struct, array_like=True):
    ids: bytes
    versions: list[tuple[str, str, int]]
    key_versions: list[tuple[str, Any, int]]


class _Noted(msgspec.Struct):
    """What was noted since the register was last settled."""

    ids: dict[bytes, None]
    versions: dict[tuple[str, str], int]
    key_versions: dict[tuple[str, Any], int]

    def __bool__(self) -> bool:
        return bool(self.ids or self.versions or self.key_versions)


class Register:
    """What one slot of a step knows about commands.

    What is noted stands apart from what was known before until `settle`: it can be taken back, and stored by itself.

    Args:
        stored: what an earlier `dump` gave, or None.
        later: what `settle` has given since, in order.
        ids_kept: how many ids are remembered, the newest.
        keys_kept: of how many keys the versions are remembered, those that had one last.

    """

    def __init__(
        self,
        stored: bytes | None = None,
        later: Sequence[bytes] = (),
        *,
        ids_kept: int = DEFAULT_IDS_KEPT,
        keys_kept: int = DEFAULT_KEYS_KEPT,
    ) -> None:
        self._ids_kept: Final = ids_kept
        self._keys_kept: Final = keys_kept
        self._ids: set[bytes] = set()
        self._order: deque[bytes] = deque()
        self._versions: dict[tuple[str, str], int] = {}
        self._key_versions: OrderedDict[tuple[str, Any], int] = OrderedDict()
        self._noted = _Noted({}, {}, {})
        if stored is not None:
            base = _noted(stored)
            self._order.extend(base.ids)
            self._ids.update(base.ids)
            self._versions.update(base.versions)
            self._key_versions.update(base.key_versions)
        for settled in later:
            self._take(_noted(settled))

    @property
    def changed(self) -> bool:
        """Whether anything was noted that is not settled."""
        return bool(self._noted)

    def seen(self, command_id: str) -> bool:
        """Take note of an id; whether it was known before."""
        return self._seen(_digest(command_id))

    def seen_all(self, command_ids: Sequence[str]) -> list[bool]:
        """Take note of ids in their order; whether each was known before."""
        digests = [_digest(one) for one in command_ids]
        new = dict.fromkeys(digests)
        if (
            len(new) < len(digests)
            or not self._ids.isdisjoint(new)
            or not self._noted.ids.keys().isdisjoint(new)
        ):
            return [self._seen(digest) for digest in digests]
        self._noted.ids |= new
        return [False] * len(digests)

    def _seen(self, digest: bytes) -> bool:
        if digest in self._ids or digest in self._noted.ids:
            return True
        self._noted.ids[digest] = None
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
        newest = self._newest(command.kind, scope)
        if command.version < newest:
            return Refusal(stale(command.version, newest))
        self._noted.versions[command.kind, scope] = command.version
        return None

    def stale_key(self, command: Command, key: Any) -> Refusal | None:
        """For one key of an admitted command: a Refusal when the key has seen a newer version."""
        if command.version is None:
            return None
        place = command.kind, _plain(key)
        own = self._noted.key_versions.get(place, self._key_versions.get(place, -1))
        newest = max(own, self._newest(command.kind, _KEYED))
        return Refusal(stale(command.version, newest)) if command.version < newest else None

    def note_key(self, command: Command, key: Any) -> None:
        """A command was applied to a key, which sees no older version from now on."""
        if command.version is not None and command.target.scope != "all":
            place = command.kind, _plain(key)
            self._noted.key_versions.pop(place, None)
            self._noted.key_versions[place] = command.version

    def take_back(self) -> None:
        """Forget what was noted since the register was last settled."""
        self._noted = _Noted({}, {}, {})

    def settle(self) -> bytes | None:
        """Know for good what was noted; gives it as bytes, the same for the same history, None when it is nothing."""
        noted = self._noted
        if not noted:
            return None
        self.take_back()
        self._take(noted)
        return _encoded(noted.ids, noted.versions, noted.key_versions)

    def dump(self) -> bytes:
        """All of the register as bytes, the same for the same history. What was noted is settled."""
        self.settle()
        return _encoded(self._order, self._versions, self._key_versions)

    def shrink(self) -> None:
        """Forget the versions of single keys of which a version to all keys says the same."""
        covered = [
            (kind, key)
            for (kind, key), version in self._key_versions.items()
            if version <= self._newest(kind, _KEYED)
        ]
        for place in covered:
            del self._key_versions[place]

    def _newest(self, kind: str, scope: str) -> int:
        return self._noted.versions.get((kind, scope), self._versions.get((kind, scope), -1))

    def _take(self, noted: _Noted) -> None:
        """Put what was noted behind what is known, of which the oldest goes where it is too much."""
        self._order.extend(noted.ids)
        self._ids.update(noted.ids)
        while len(self._order) > self._ids_kept:
            self._ids.discard(self._order.popleft())
        self._versions.update(noted.versions)
        for place, version in noted.key_versions.items():
            self._key_versions[place] = version
            self._key_versions.move_to_end(place)
        while noted.key_versions and len(self._key_versions) > self._keys_kept:
            self._key_versions.popitem(last=False)


def _digest(command_id: str) -> bytes:
    return xxhash.xxh3_128_digest(command_id.encode())


def _noted(stored: bytes) -> _Noted:
    found = msgspec.msgpack.decode(stored, type=_Stored)
    ids = found.ids
    return _Noted(
        dict.fromkeys(ids[i : i + _DIGEST_BYTES] for i in range(0, len(ids), _DIGEST_BYTES)),
        {(kind, scope): version for kind, scope, version in found.versions},
        {(kind, _hashable(key)): version for kind, key, version in found.key_versions},
    )


def _encoded(
    ids: Iterable[bytes], versions: Mapping[tuple[str, str], int], key_versions: Mapping[tuple[str, Any], int]
) -> bytes:
    return msgspec.msgpack.encode(
        _Stored(
            b"".join(ids),
            [(kind, scope, version) for (kind, scope), version in versions.items()],
            [(kind, key, version) for (kind, key), version in key_versions.items()],
        )
    )


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
