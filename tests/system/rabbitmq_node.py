"""A real RabbitMQ for tests: on free ports, in a folder of its own, to be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

import pika
from debian import find_or_install
from free_ports import free_port

SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S: Final = 90.0
LARGEST_BYTES: Final = 4 << 20
PASSWORD: Final = "s3cr3t pass/word"
ESCAPED_PASSWORD: Final = "s3cr3t%20pass%2Fword"


def require_rabbitmq() -> None:
    """Install Debian's RabbitMQ when it is missing and that is possible; otherwise skip the test."""
    find_or_install(lambda: SERVER if SERVER.exists() else None, "rabbitmq-server", "RabbitMQ")


class RabbitNode:
    """One broker with the stream plugin; a context manager. Its ports stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.stream_port, self._dist_port, self._epmd_port = (free_port() for _ in range(4))
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        (folder / "config").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.default = 127.0.0.1:{self.stream_port}\n"
            "stream.advertised_host = 127.0.0.1\n"
            f"stream.advertised_port = {self.stream_port}\n"
            f"default_user = tester\ndefault_pass = {PASSWORD}\n"
            "log.console = false\n"
            f"max_message_size = {LARGEST_BYTES}\n"
        )
        (folder / "plugins").write_text("[rabbitmq_stream].\n")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "penstock@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    def __enter__(self) -> Self:
        command = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        with (self.folder / "epmd.log").open("wb") as log:
            self._epmd = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()

    def start(self) -> None:
        """Start the broker and wait until it serves both protocols."""
        with (self.folder / "server.log").open("ab") as log:
            # A session of its own, so that the shell and the Erlang machine behind it are killed together.
            self._server = subprocess.Popen(
                [str(SERVER)], env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while True:
            assert self._server.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, "RabbitMQ does not answer"
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self.connect().close()
                socket.create_connection(("127.0.0.1", self.stream_port), timeout=1).close()
                return
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """An orderly restart: what was declared is on disk after it."""
        self._end(signal.SIGTERM)
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, number)
            self._server.wait(30)
            self._server = None

    def connect(self, **more: Any) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials("tester", PASSWORD)
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials, **more)
        )

    def queue_uri(self, queue: str, more: str = "") -> str:
        return f"amqp://tester:{ESCAPED_PASSWORD}@127.0.0.1:{self.port}/%2F/{queue}{more}"

    def stream_uri(self, stream: str, more: str = "") -> str:
        login = f"tester:{ESCAPED_PASSWORD}@127.0.0.1:{self.stream_port}"
        return f"rabbitmq-stream://{login}/%2F/{stream}{more}"
