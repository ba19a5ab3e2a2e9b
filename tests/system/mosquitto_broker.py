"""A real Mosquitto for tests: on free ports, in a folder of its own, to be restarted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, Self

import paho.mqtt.client as paho
from certificates import Authority
from debian import find_or_install
from free_ports import free_port
from paho.mqtt.enums import CallbackAPIVersion

PASSWORD: Final = "s3cr3t/pass"
START_S: Final = 30.0


def _program() -> Path | None:
    found = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    return Path(found) if found else None


class MosquittoBroker:
    """One broker that keeps sessions on disk; a context manager. Its ports stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self._program = find_or_install(_program, "mosquitto", "Mosquitto")
        self._folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self.authority = Authority(folder / "certificates", "tests")
        self._server: subprocess.Popen[bytes] | None = None
        passwords = folder / "passwords"
        passwords.write_text(f"tester:{PASSWORD}\n")
        subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
        certificate, key = self.authority.sign("broker", "IP:127.0.0.1")
        (folder / "config").write_text(
            f"user root\nper_listener_settings false\nallow_anonymous false\npassword_file {passwords}\n"
            f"persistence true\npersistence_location {folder}/\nmax_queued_messages 0\n"
            f"listener {self.port} 127.0.0.1\n"
            f"listener {self.tls_port} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\n"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and wait until it listens."""
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [str(self._program), "-c", str(self._folder / "config")], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while True:
            told = (self._folder / "log").read_text()
            assert self._server.poll() is None, told
            assert time.monotonic() < deadline, told
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def stop(self) -> None:
        """End it in an orderly way, so that it keeps its sessions."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(30)
            self._server = None

    def uri(
        self, topic: str, query: str = "", *, scheme: str = "mqtt", password: str = "s3cr3t%2Fpass"
    ) -> str:
        port = self.tls_port if scheme == "mqtts" else self.port
        return f"{scheme}://tester:{password}@127.0.0.1:{port}/{topic}{query}"

    def publish(self, topic: str, bodies: list[bytes], *, retain: bool = False) -> None:
        """Publish messages, and wait until the broker has them."""
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.username_pw_set("tester", PASSWORD)
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        for sent in [client.publish(topic, body, qos=1, retain=retain) for body in bodies]:
            sent.wait_for_publish(60)
        client.disconnect()
        client.loop_stop()
