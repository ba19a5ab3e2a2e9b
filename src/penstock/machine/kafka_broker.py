"""Kafka: a real Apache Kafka broker on this machine, for the demo, tests and benchmarks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.errors import PenstockError
from penstock.machine.jars import kafka_broker_jars
from penstock.machine.java import find_java

__all__ = ["BrokerStartError", "KafkaBroker"]

_PATIENCE_S: Final = 60.0
_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})
_PORTS: Final = (15_000, 30_000)
_PORT_ATTEMPTS: Final = 100


class BrokerStartError(PenstockError):
    """The Kafka broker did not start."""

    fault = "external"


class KafkaBroker:
    """One Apache Kafka node (KRaft) on free loopback ports; a context manager.

    The ports stay the same when it is stopped or killed and started again. On Linux, a broker that was started in the
    main thread ends with this process, however the process ends.

    >>> with KafkaBroker() as broker:  # doctest: +SKIP
    ...     broker.create_topic("readings", partitions=4)

    Args:
        folder: the folder of its data; None is a temporary folder that is removed at the end.
        heap_mb: the broker's heap, in megabytes.
        is_lasting: compile hot code fully, like a broker in production; by default the compiler is quick.

    """

    def __init__(self, folder: Path | None = None, heap_mb: int = 512, *, is_lasting: bool = False) -> None:
        self._temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self._heap_mb = heap_mb
        self._is_lasting: Final = is_lasting
        self._process: subprocess.Popen[bytes] | None = None
        listeners = self._listeners()
        self._ports = dict(zip(listeners, _free_ports(len(listeners)), strict=True))

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`."""
        return self._at("PLAINTEXT")

    def _listeners(self) -> list[str]:
        """Return the names of the listeners: each protocol for clients, and the controller."""
        return ["PLAINTEXT", "CONTROLLER"]

    def _at(self, listener: str) -> str:
        assert listener in self._ports, f"the broker was started without {listener}"
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the broker on its existing data, and wait until it answers."""
        assert self._process is None or self._process.poll() is not None, "the broker runs already"
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        if not (self._folder / "data" / "meta.properties").exists():
            self._format(config)
        # The kernel ends the broker with the thread that started it, not with the process. A pool thread may end early.
        in_main_thread = threading.current_thread() is threading.main_thread()
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(config)),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent if in_main_thread else None,
            )
        self._await_ready()

    def stop(self) -> None:
        """Shut the broker down cleanly. Its data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker immediately (kill -9). Its data stays."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop the broker, and remove its data if it is in a temporary folder."""
        self._end(signal.SIGTERM if not self._temporary else signal.SIGKILL)
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] = _NO_CONFIG) -> None:
        """Create a topic with these settings, and wait until it exists.

        Raises BrokerStartError when it does not appear within 60 s.
        """
        client = self._admin()
        for future in client.create_topics([NewTopic(name, partitions, 1, config=dict(config))]).values():
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
        compiler = [] if self._is_lasting else ["-XX:TieredStopAtLevel=1"]
        options = [f"-Xmx{self._heap_mb}m", *compiler, "-XX:+UseSerialGC"]
        return [str(find_java().java), *options, "-cp", f"{kafka_broker_jars()}/*", *arguments]

    def _format(self, config: Path) -> None:
        cluster = uuid.uuid4().hex[:22]
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
        if done.returncode != 0:
            raise BrokerStartError(
                f"Kafka's storage could not be formatted: {(done.stderr or done.stdout).strip()[-500:]}"
            )

    def _settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self._at('CONTROLLER')}",
            "listeners": ",".join(f"{name}://{self._at(name)}" for name in self._ports),
            "advertised.listeners": ",".join(
                f"{name}://{self._at(name)}" for name in self._ports if name != "CONTROLLER"
            ),
            # Each listener is named for its protocol.
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in self._ports
            ),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "data"),
            "auto.create.topics.enable": "false",
            # One node: internal topics with one replica, and few partitions so that it starts fast.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            # Readers of committed records wait for the transactions of clients that were killed.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Nobody follows the metadata of one node. By default it gets a record twice a second.
            "metadata.max.idle.interval.ms": "0",
            "log.retention.hours": "168",
        }

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        client = self._admin()
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                log = (self._folder / "broker.log").read_text(errors="replace").strip().splitlines()
                raise BrokerStartError(f"The Kafka broker exited during startup: {' '.join(log[-3:])[-500:]}")
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.1)
        raise BrokerStartError(f"The Kafka broker did not answer within {_PATIENCE_S:.0f} s.")

    def _admin(self) -> AdminClient:
        # Without a callback, librdkafka logs every connection that fails while the broker starts.
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "error_cb": _ignore, "log_level": 0}
        return AdminClient(settings)


def _ignore(error: Any) -> None:
    """Ignore an error, since the result of the call reports it."""


def _free_ports(count: int) -> list[int]:
    """Return free ports below those that the kernel uses for outgoing connections.

    With a port of that range, a client that retries while the broker is down could connect to itself and hold the port.
    """
    with contextlib.ExitStack() as stack:
        return [_bind(stack.enter_context(socket.socket())) for _ in range(count)]


def _bind(listener: socket.socket) -> int:
    for _ in range(_PORT_ATTEMPTS):
        with contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", random.randrange(*_PORTS)))  # noqa: S311  # a port is not secret
            return int(listener.getsockname()[1])
    raise BrokerStartError(f"No free port was found between {_PORTS[0]} and {_PORTS[1]} on 127.0.0.1.")


_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True) if os.uname().sysname == "Linux" else None


def _die_with_parent() -> None:
    """Make the new process end when the thread that started it ends, for whatever reason."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
