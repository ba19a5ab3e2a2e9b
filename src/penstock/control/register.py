"""The register: the commands that a step has taken, so that none is applied twice and no version goes back.

Every slot of a step has one. All slots see the commands for the step in the same order, so they make the same
decisions. Only the versions of single keys are kept by just the slot that has the key.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash

from penstock.control.commands import Command

__all__ = ["DEFAULT_IDS_KEPT", "DEFAULT_KEYS_KEPT", "Refusal", "Register", "merge_registers"]

DEFAULT_IDS_KEPT: Final = 100_000
DEFAULT_KEYS_KEPT: Final = 100_000

# Ids are kept as hashes (XXH3, 128 bits), which are shorter than most ids.
_DIGEST_BYTES: Final = 16

# The scope of versions for keys, separate from that of the step: a command to a step does not concern its keys.
_KEYED: Final = "keyed"


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a command is not applied. A duplicate is not reported: it has its receipt already."""

    reason: str
    duplicate: bool = False


class _Stored(msgspec.Struct, array_like=True):
    ids: bytes
    versions: list[tuple[str, str, int]]
    key_versions: list[tuple[str, Any, int]]


class _Noted(msgspec.Struct):
    """The entries noted since the register was last settled."""

    ids: dict[bytes, None]
    versions: dict[tuple[str, str], int]
    key_versions: dict[tuple[str, Any], int]

    def __bool__(self) -> bool:
        return bool(self.ids or self.versions or self.key_versions)


class Register:
    """The knowledge of one slot of a step about commands.

    New entries are kept separately until `settle`, so that they can be taken back; settled entries until
    `take_settled`, so that they can be stored by themselves.

    Args:
        stored: the result of an earlier `dump`, or None.
        later: the results of `take_settled` since then, in order.
        ids_kept: the number of ids to remember, the newest.
        keys_kept: the number of keys whose versions are remembered, those with the most recently noted ones.

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
        self._settled = _Noted({}, {}, {})
        if stored is not None:
            base = _decode(stored)
            self._order.extend(base.ids)
            self._ids.update(base.ids)
            self._versions.update(base.versions)
            self._key_versions.update(base.key_versions)
        for settled in later:
            self._take(_decode(settled))

    @property
    def changed(self) -> bool:
        """Whether there are entries that are not settled."""
        return bool(self._noted)

    def mark_seen(self, command_id: str) -> bool:
        """Note an id. Return whether it was known before."""
        return self._mark_seen(_digest(command_id))

    def mark_all_seen(self, command_ids: Sequence[str]) -> list[bool]:
        """Note ids in their order. Return for each whether it was known before."""
        digests = [_digest(one) for one in command_ids]
        new = dict.fromkeys(digests)
        if (
            len(new) < len(digests)
            or not self._ids.isdisjoint(new)
            or not self._noted.ids.keys().isdisjoint(new)
        ):
            return [self._mark_seen(digest) for digest in digests]
        self._noted.ids |= new
        return [False] * len(digests)

    def _mark_seen(self, digest: bytes) -> bool:
        if digest in self._ids or digest in self._noted.ids:
            return True
        self._noted.ids[digest] = None
        return False

    def admit(self, command: Command, now: dt.datetime) -> Refusal | None:
        """Note a command. Return a Refusal if it must not be applied. `now` is the time of the micro-batch."""
        if self.mark_seen(command.id):
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
        """Return a Refusal for one key of an admitted command if the key has seen a newer version."""
        if command.version is None:
            return None
        place = command.kind, _plain(key)
        own = self._noted.key_versions.get(place, self._key_versions.get(place, -1))
        newest = max(own, self._newest(command.kind, _KEYED))
        return Refusal(stale(command.version, newest)) if command.version < newest else None

    def note_key(self, command: Command, key: Any) -> None:
        """Note that a command was applied to a key. The key refuses older versions from now on."""
        if command.version is not None and command.target.scope != "all":
            place = command.kind, _plain(key)
            self._noted.key_versions.pop(place, None)
            self._noted.key_versions[place] = command.version

    def take_back(self) -> None:
        """Forget the entries noted since the register was last settled."""
        self._noted = _Noted({}, {}, {})

    def settle(self) -> bool:
        """Keep the noted entries for good. Return whether there are any."""
        noted = self._noted
        if not noted:
            return False
        self.take_back()
        self._take(noted)
        settled = self._settled
        for digest in settled.ids.keys() & noted.ids:
            # It was forgotten in between.
            del settled.ids[digest]
        settled.ids |= noted.ids
        settled.versions |= noted.versions
        for place, version in noted.key_versions.items():
            settled.key_versions.pop(place, None)
            settled.key_versions[place] = version
        return True

    def take_settled(self) -> bytes | None:
        """Return the entries settled since this was last called, the same bytes for the same history; None if empty."""
        settled, self._settled = self._settled, _Noted({}, {}, {})
        return _encode(settled.ids, settled.versions, settled.key_versions) if settled else None

    def dump(self) -> bytes:
        """Settle, and return the whole register as bytes, the same for the same history."""
        self.settle()
        self._settled = _Noted({}, {}, {})
        return _encode(self._order, self._versions, self._key_versions)

    def shrink(self) -> None:
        """Forget the versions of single keys that a version for all keys covers."""
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
        """Append noted entries to the known ones, and drop the oldest above the limits."""
        for digest in self._ids.intersection(noted.ids):
            # It was forgotten and noted again before both were stored together.
            self._order.remove(digest)
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


def _decode(stored: bytes) -> _Noted:
    found = msgspec.msgpack.decode(stored, type=_Stored)
    ids = found.ids
    return _Noted(
        dict.fromkeys(ids[i : i + _DIGEST_BYTES] for i in range(0, len(ids), _DIGEST_BYTES)),
        {(kind, scope): version for kind, scope, version in found.versions},
        {(kind, _hashable(key)): version for kind, key, version in found.key_versions},
    )


def _encode(
    ids: Iterable[bytes], versions: Mapping[tuple[str, str], int], key_versions: Mapping[tuple[str, Any], int]
) -> bytes:
    return msgspec.msgpack.encode(
        _Stored(
            b"".join(ids),
            [(kind, scope, version) for (kind, scope), version in versions.items()],
            [(kind, key, version) for (kind, key), version in key_versions.items()],
        )
    )


def merge_registers(stored: Sequence[bytes]) -> bytes:
    """Merge the registers of all slots of a step, which differ only in the versions of single keys."""
    found = [msgspec.msgpack.decode(register, type=_Stored) for register in stored]
    # All slots know the same ids, even those that were idle. Only a slot that has never run knows fewer.
    longest = max(found, key=lambda register: len(register.ids))
    versions: dict[tuple[str, str], int] = {}
    # After a rescaling every slot has the versions of all keys, and only updates those of its own.
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
    """Return the reason for refusing an old version."""
    return f"version {version} is stale: version {newest} has been applied"


def _plain(key: Any) -> Any:
    """Return a key in the form in which it comes back from storage."""
    return _hashable(msgspec.to_builtins(key))


def _hashable(key: Any) -> Any:
    """Return a key of several fields as a tuple; storage returns it as a list."""
    return tuple(key) if isinstance(key, list) else key
