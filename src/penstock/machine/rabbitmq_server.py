"""RabbitMQ: a real broker with queues and streams on this machine, for the demo and tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pika

from penstock.machine.debian_packages import find_or_install
from penstock.machine.local_server import LocalServer, free_port, listens

__all__ = ["NODE", "LocalRabbitMQ"]

NODE: Final = "penstock@localhost"
"""The name of the broker among nodes of Erlang."""

_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class LocalRabbitMQ(LocalServer):
    """One broker with the stream plugin; a context manager."""

    def __init__(self, folder: Path, user: str, password: str) -> None:
        super().__init__("RabbitMQ", folder / "server.log")
        find_or_install(lambda: _PROGRAM if _PROGRAM.exists() else None, "rabbitmq-server", "RabbitMQ")
        self._folder = folder
        self._login = pika.PlainCredentials(user, password)
        self.port, self.stream_port, nodes_port, self._epmd_port = (free_port() for _ in range(4))
        self._epmd: subprocess.Popen[bytes] | None = None
        (folder / "config").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.default = 127.0.0.1:{self.stream_port}\n"
            "stream.advertised_host = 127.0.0.1\n"
            f"stream.advertised_port = {self.stream_port}\n"
            f"default_user = {user}\ndefault_pass = {password}\n"
            "log.console = false\n"
        )
        (folder / "plugins").write_text("[rabbitmq_stream].\n")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(nodes_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def start(self) -> None:
        """Start the broker and wait until it serves both protocols."""
        if self._epmd is None:
            # The register of Erlang's nodes outlives the broker, which would start one for the whole machine.
            with (self._folder / "epmd.log").open("wb") as log:
                self._epmd = subprocess.Popen(
                    ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"],
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
        self.launch([str(_PROGRAM)], self._answers, environment=self._environment)

    def connect(self, **more: Any) -> pika.BlockingConnection:
        """Connect to the broker."""
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, credentials=self._login, **more)
        )

    def _answers(self) -> bool:
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            self.connect().close()
            return listens(self.stream_port)
        return False
