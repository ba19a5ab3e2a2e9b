"""HDFS connections: one client for each NameNode in a process, and a time limit for its calls."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from penstock.errors import BindingError
from penstock.objects.object_stores import Place

if TYPE_CHECKING:
    from hdfs_native import Client

__all__ = ["client_of", "forget_client", "within"]

_T = TypeVar("_T")
_clients: Final[dict[tuple[int, str], Client]] = {}
_lock: Final = threading.Lock()
# By default the library asks an unreachable NameNode for three minutes, however short the deadline. Of several
# NameNodes it finds the active one.
_ONE: Final = {"dfs.client.failover.max.attempts": "0"}
_SEVERAL: Final = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
}
_PROVIDER: Final = "dfs.client.failover.proxy.provider"
_ACTIVE_ONLY: Final = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


def client_of(place: Place) -> Client:
    """Return this process's client for the NameNodes of a place, which keeps its connections.

    Raises BindingError when the library is missing.
    """
    key = (os.getpid(), place.host)
    with _lock:
        if key not in _clients:
            _clients[key] = _client(place)
        return _clients[key]


def forget_client(place: Place) -> None:
    """Make the next request open a new connection."""
    with _lock:
        _clients.pop((os.getpid(), place.host), None)


def _client(place: Place) -> Client:
    try:
        from hdfs_native import Client
    except ImportError:
        raise BindingError(
            f"{place.shown} needs the HDFS client, which is not installed. Install it: pip install 'penstock[hdfs]'."
        ) from None
    # An observer may not yet have what another client has written.
    several = {**_SEVERAL, f"{_PROVIDER}.{place.host}": _ACTIVE_ONLY}
    return Client(f"hdfs://{place.host}", _ONE if ":" in place.host else several)


def within(limit_s: float, work: Callable[[], _T]) -> _T:
    """Return what a call returns. Raises TimeoutError when it takes too long; the call then runs on unattended.

    >>> within(5.0, lambda: 1 + 1)
    2
    """
    answers: queue.SimpleQueue[tuple[bool, object]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, work()))
        except BaseException as e:
            answers.put((False, e))

    # A thread that waits forever does not keep the process alive.
    threading.Thread(target=run, name="hdfs-request", daemon=True).start()
    try:
        is_well, found = answers.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:.0f} s") from None
    if not is_well:
        raise cast("BaseException", found)
    return cast("_T", found)
