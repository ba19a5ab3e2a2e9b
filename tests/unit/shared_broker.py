"""One Kafka broker for all processes of a test session: a start costs 5 CPU-seconds, and an idle broker keeps costing.

The process that hands out tests listens on a socket. It starts the broker when the first process that runs tests asks
for it, in a process of its own that ends with it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path

from secured_broker import SecuredBroker

__all__ = ["USERS", "BrokerOfSession", "broker_at"]

USERS = {"ann": "ann-secret"}
"""The passwords of clients that log in."""


class BrokerOfSession:
    """Starts a broker for whoever asks at `address`, once."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-broker-")
        self._listener = Listener(str(Path(self._folder.name) / "socket"), "AF_UNIX")
        self._process: subprocess.Popen[str] | None = None
        self._addresses = ""
        threading.Thread(target=self._answer, name="broker-of-session", daemon=True).start()

    @property
    def address(self) -> str:
        """Where to ask."""
        return str(self._listener.address)

    def close(self) -> None:
        """End the broker, if anyone has asked for it."""
        self._listener.close()
        if self._process is not None:
            self._process.communicate()
        self._folder.cleanup()

    def _answer(self) -> None:
        while True:
            try:
                asked = self._listener.accept()
            except OSError:
                return  # closed
            with asked:
                if self._process is None:
                    self._start()
                asked.send(self._addresses)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._addresses = self._process.stdout.readline().strip()


class _BrokerElsewhere(SecuredBroker):
    """A broker that runs in another process, which alone may stop it."""

    def __init__(self, bootstrap: str, secured: str) -> None:
        self._bootstrap, self._secured = bootstrap, secured

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return self._bootstrap

    @property
    def secured(self) -> str:
        """The address for clients that log in."""
        return self._secured


@contextmanager
def broker_at(address: str | None) -> Iterator[SecuredBroker]:
    """Return the broker of a session, or without an address one that ends with the block."""
    if address is None:
        with SecuredBroker(USERS) as own:
            yield own
        return
    with Client(address, "AF_UNIX") as connection:
        addresses = connection.recv()
    assert addresses, "The broker of the session has not started; its output stands above."
    yield _BrokerElsewhere(*addresses.split())


def _main() -> None:
    """Run a broker until whoever has started this process is gone."""
    with SecuredBroker(USERS) as broker:
        print(broker.bootstrap, broker.secured, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _main()
