"""A real Mosquitto for tests, with a password and TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import paho.mqtt.client as paho
from certificates import Authority
from debian import skipped_where_missing
from paho.mqtt.enums import CallbackAPIVersion

from penstock.machine.local_server import free_port
from penstock.machine.mosquitto import LocalMosquitto

PASSWORD: Final = "s3cr3t/pass"


class MosquittoBroker(LocalMosquitto):
    """One broker that keeps sessions on disk; a context manager. Its ports stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.tls_port = free_port()
        self.authority = Authority(folder / "certificates", "tests")
        passwords = folder / "passwords"
        certificate, key = self.authority.sign("broker", "IP:127.0.0.1")
        with skipped_where_missing():
            super().__init__(
                folder,
                f"allow_anonymous false\npassword_file {passwords}\n"
                f"listener {self.tls_port} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\n",
            )
        passwords.write_text(f"tester:{PASSWORD}\n")
        subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)

    def stop(self) -> None:
        """Stop it in an orderly way, so that it keeps its sessions."""
        self.end()

    def uri(
        self, topic: str, query: str = "", *, scheme: str = "mqtt", password: str = "s3cr3t%2Fpass"
    ) -> str:
        port = self.tls_port if scheme == "mqtts" else self.port
        return f"{scheme}://tester:{password}@127.0.0.1:{port}/{topic}{query}"

    def publish(self, topic: str, bodies: list[bytes], *, retain: bool = False) -> None:
        """Publish messages, and wait until the broker has acknowledged them."""
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.username_pw_set("tester", PASSWORD)
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        for sent in [client.publish(topic, body, qos=1, retain=retain) for body in bodies]:
            sent.wait_for_publish(60)
        client.disconnect()
        client.loop_stop()
