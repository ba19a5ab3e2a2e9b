"""Kafka: a real Apache Kafka broker on this machine, for the demo, tests and benchmarks."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import PenstockError
from penstock.local.jars import kafka_broker_jars
from penstock.local.java import find_java

__all__ = ["BrokerStartError", "KafkaBroker"]

_PATIENCE_S: Final = 60.0


class BrokerStartError(PenstockError):
    """The Kafka broker did not start."""

    fault = "external"


class KafkaBroker:
    """One Apache Kafka node (KRaft) on free loopback ports; a context manager.

    >>> with KafkaBroker() as broker:  # doctest: +SKIP
    ...     broker.create_topic("readings", partitions=4)

    Args:
        folder: where its data is kept; None is a temporary folder that is removed at the end.
        heap_mb: the broker's heap, in megabytes.
    """

    def __init__(self, folder: Path | None = None, heap_mb: int = 512) -> None:
        self._temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._controller_port = _free_ports()

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> KafkaBroker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start the broker, on the data that is there, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "server.properties"
        config.write_text(self._configuration())
        if not (self._folder / "data" / "meta.properties").exists():
            self._format(config)
        self._process = subprocess.Popen(
            self._java("kafka.Kafka", str(config)),
            stdout=(self._folder / "broker.log").open("ab"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # calls one function of the kernel only
        )
        self._await_ready()

    def stop(self) -> None:
        """Stop the broker in an orderly way; its data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker at once (kill -9); its data stays."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop the broker, and remove its data when it is in a temporary folder."""
        self._end(signal.SIGTERM if not self._temporary else signal.SIGKILL)
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic and wait until it is there."""
        client = self._admin()
        for future in client.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while len(client.list_topics(name, timeout=10).topics[name].partitions) != partitions:
            if time.monotonic() > deadline:
                raise BrokerStartError(f"The topic {name!r} did not appear within {_PATIENCE_S:.0f} s.")
            time.sleep(0.05)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _java(self, *arguments: str) -> list[str]:
        options = [f"-Xmx{self._heap_mb}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [str(find_java().java), *options, "-cp", f"{kafka_broker_jars()}/*", *arguments]

    def _format(self, config: Path) -> None:
        cluster = str(uuid.UUID(int=uuid.uuid4().int).hex[:22])
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
        if done.returncode != 0:
            raise BrokerStartError(f"Kafka's storage could not be formatted: {(done.stderr or done.stdout).strip()[-500:]}")

    def _configuration(self) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "data"),
            "auto.create.topics.enable": "false",
            # One node: internal topics with one replica, and few partitions so that it starts fast.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.hours": "168",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        client = self._admin()
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                log = (self._folder / "broker.log").read_text(errors="replace").strip().splitlines()
                raise BrokerStartError(f"The Kafka broker ended at once: {' '.join(log[-3:])[-500:]}")
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.1)
        raise BrokerStartError(f"The Kafka broker did not answer within {_PATIENCE_S:.0f} s.")

    def _admin(self) -> AdminClient:
        # Without a callback librdkafka writes a line for every connection that fails while the broker starts.
        return AdminClient({"bootstrap.servers": self.bootstrap, "error_cb": _ignore, "log_level": 0})


def _ignore(error: Any) -> None:
    """Errors show in the result of the call."""


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True) if os.uname().sysname == "Linux" else None


def _die_with_parent() -> None:
    """In the new process: end when the process that started it ends, however that happens."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
