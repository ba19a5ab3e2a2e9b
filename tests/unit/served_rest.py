"""The REST app of `rest_support` behind a real socket, with a manager whose drivers need no Spark if it is wanted."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import small_driver
import uvicorn
from left_drivers import kill_left_drivers
from rest_support import TOKENS, RestPlace

from penstock.machine.local_server import free_port
from penstock.server.api.access import Role
from penstock.server.manager import manager as manager_module
from penstock.server.manager.manager import Manager, ManagerSettings


class ServedRest(RestPlace):
    """A server in a thread of this process."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._stop = threading.Event()
        self._manager: Manager | None = None
        self._threads: list[threading.Thread] = []
        self._server: uvicorn.Server | None = None
        self.listen()

    def listen(self) -> None:
        """Listen, again after an end."""
        config = uvicorn.Config(self.app, port=self.port, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        thread = threading.Thread(target=self._server.run, daemon=True)
        self._threads.append(thread)
        thread.start()
        while not self._server.started:
            assert thread.is_alive()
            thread.join(0.01)

    def end(self) -> None:
        """Listen no more."""
        assert self._server is not None
        self._server.should_exit = True
        self._threads.pop().join(20)

    def manage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a manager work from now on."""
        monkeypatch.setattr(manager_module, "_DRIVER", (sys.executable, small_driver.__file__))
        self._manager = Manager(self.store, self.catalog, self.home, ManagerSettings(poll_s=0.1, lease_s=0.5))
        thread = threading.Thread(target=self._manager.run, args=[self._stop], daemon=True)
        self._threads.insert(0, thread)
        thread.start()

    def environment(self, role: Role = Role.ADMIN) -> dict[str, str]:
        """The variables by which the command line finds the server."""
        return {
            "PENSTOCK_SERVER": self.url,
            "PENSTOCK_TOKEN": TOKENS[role],
            "COLUMNS": "250",
            "PENSTOCK_CHECKPOINT": "",
        }

    def close(self) -> None:
        self._stop.set()
        if self._manager is not None:
            self._manager.wake()
        if self._server is not None:
            self._server.should_exit = True
        for thread in self._threads:
            thread.join(20)
        kill_left_drivers(self.home.root)
        super().close()
