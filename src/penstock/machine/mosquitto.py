"""Mosquitto: a real MQTT broker on this machine, for the demo and tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from penstock.machine.debian_packages import find_or_install
from penstock.machine.local_server import LocalServer, free_port, listens

__all__ = ["LocalMosquitto"]

_OPEN: Final = "allow_anonymous true\n"


class LocalMosquitto(LocalServer):
    """One broker that keeps sessions on disk; a context manager.

    Args:
        folder: where it keeps them.
        settings: further lines of its configuration, with `{port}`; without any, it admits everybody.

    """

    def __init__(self, folder: Path, settings: str = _OPEN) -> None:
        super().__init__("Mosquitto", folder / "log")
        self._program = find_or_install(_program, "mosquitto", "Mosquitto")
        self._config = folder / "config"
        self.port = free_port()
        self._config.write_text(
            # It would drop root's rights, and with them the folder.
            ("user root\n" if os.geteuid() == 0 else "")
            + f"per_listener_settings false\npersistence true\npersistence_location {folder}/\n"
            f"max_queued_messages 0\nlistener {self.port} 127.0.0.1\n{settings}"
        )

    def start(self) -> None:
        """Start the broker and wait until it listens."""
        self.launch([str(self._program), "-c", str(self._config)], lambda: listens(self.port))


def _program() -> Path | None:
    found = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    return Path(found) if found else None
