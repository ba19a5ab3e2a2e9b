"""A real RabbitMQ for tests: on free ports, in a folder of its own, which tests kill and restart."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Final

from debian import skipped_where_missing

from penstock.machine.rabbitmq_server import NODE, LocalRabbitMQ

LARGEST_BYTES: Final = 4 << 20
PASSWORD: Final = "s3cr3t pass/word"
ESCAPED_PASSWORD: Final = "s3cr3t%20pass%2Fword"


class RabbitNode(LocalRabbitMQ):
    """One broker with the stream plugin; a context manager. Its ports stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        with skipped_where_missing():
            super().__init__(folder, "tester", PASSWORD)
        self.folder = folder
        with (folder / "config").open("a") as config:
            config.write(f"max_message_size = {LARGEST_BYTES}\n")

    def kill(self) -> None:
        """Kill -9."""
        self.signal(signal.SIGKILL)

    def settle(self) -> None:
        """Write declarations to disk, which a kill may otherwise lose."""
        cookie = (self.folder / ".erlang.cookie").read_text()
        done = subprocess.run(
            ["erl_call", "-c", cookie, "-n", NODE, "-a", "mnesia dump_log []"],
            env=self._environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        assert done.stdout == b"dumped"

    def queue_uri(self, queue: str, more: str = "") -> str:
        return f"amqp://tester:{ESCAPED_PASSWORD}@127.0.0.1:{self.port}/%2F/{queue}{more}"

    def stream_uri(self, stream: str, more: str = "") -> str:
        login = f"tester:{ESCAPED_PASSWORD}@127.0.0.1:{self.stream_port}"
        return f"rabbitmq-stream://{login}/%2F/{stream}{more}"
