"""A real Apache Cassandra for tests: one node from its jars, on free ports, which tests kill and restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Final

from cassandra.cluster import Cluster, NoHostAvailable
from debian import skipped_where_missing
from server_jars import server_jars

from penstock.machine.java import find_java
from penstock.machine.local_server import LocalServer, free_port

KEYSPACE: Final = "plant"
USER, PASSWORD = "cassandra", "cassandra"

# Java's own packages that Cassandra accesses, which modules close.
_EXPORTS: Final = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
)
_OPENS: Final = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
_LOGGING: Final = (
    '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">'
    "<encoder><pattern>%level %msg%n</pattern></encoder></appender>"
    '<root level="WARN"><appender-ref ref="out"/></root></configuration>'
)


class CassandraServer(LocalServer):
    """One node that writes each change to disk before it answers; a context manager. Its ports stay the same."""

    def __init__(self, folder: Path, *, logins: bool = False) -> None:
        super().__init__("Cassandra", folder / "log")
        self._folder = folder
        self._logins = logins
        self.port, self._storage_port, self._jmx_port = free_port(), free_port(), free_port()
        with skipped_where_missing():
            self._jars = server_jars("cassandra")
        (folder / "logback.xml").write_text(_LOGGING)
        # JSON is YAML.
        (folder / "cassandra.yaml").write_text(json.dumps(self._settings()))

    def _settings(self) -> dict[str, Any]:
        folder = self._folder
        seeds = [{"seeds": f"127.0.0.1:{self._storage_port}"}]
        return {
            "cluster_name": "tests",
            "num_tokens": 1,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "seed_provider": [
                {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}
            ],
            "listen_address": "127.0.0.1",
            "rpc_address": "127.0.0.1",
            "storage_port": self._storage_port,
            "native_transport_port": self.port,
            "endpoint_snitch": "SimpleSnitch",
            "commitlog_sync": "batch",
            "authenticator": "PasswordAuthenticator" if self._logins else "AllowAllAuthenticator",
            "authorizer": "CassandraAuthorizer" if self._logins else "AllowAllAuthorizer",
            "data_file_directories": [str(folder / "data")],
            "commitlog_directory": str(folder / "commitlog"),
            "saved_caches_directory": str(folder / "saved"),
            "hints_directory": str(folder / "hints"),
            "cdc_raw_directory": str(folder / "cdc"),
        }

    def start(self) -> None:
        """Start the node and wait until it answers; afterwards the keyspace exists."""
        properties = {
            "jdk.attach.allowAttachSelf": "true",
            "logback.configurationFile": str(self._folder / "logback.xml"),
            "cassandra.config": f"file://{self._folder}/cassandra.yaml",
            "cassandra.storagedir": str(self._folder),
            "cassandra.jmx.local.port": str(self._jmx_port),
            # A single node waits for no others.
            "cassandra.ring_delay_ms": "0",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.superuser_setup_delay_ms": "0",
        }
        command = [
            str(find_java().java),
            *("-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(part for name in _EXPORTS for part in ("--add-exports", f"{name}=ALL-UNNAMED")),
            *(part for name in _OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-cp", ":".join(map(str, self._jars))),
            "org.apache.cassandra.service.CassandraDaemon",
        ]
        self.launch(command, self._answers, folder=self._folder)

    def _answers(self) -> bool:
        try:
            self.execute(
                f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
        except NoHostAvailable:
            return False
        return True

    def kill(self) -> None:
        """Kill -9."""
        self.signal(signal.SIGKILL)

    def cluster(self) -> Cluster:
        """A client."""
        login: dict[str, Any] = {}
        if self._logins:
            from cassandra.auth import PlainTextAuthProvider

            login = {"auth_provider": PlainTextAuthProvider(USER, PASSWORD)}
        return Cluster(["127.0.0.1"], port=self.port, control_connection_timeout=20, **login)

    def execute(self, *statements: str) -> list[Any]:
        """Execute statements; return the rows of the last one."""
        with self.cluster() as cluster:
            session = cluster.connect()
            session.default_timeout = 60
            found: list[Any] = []
            for statement in statements:
                found = list(session.execute(statement))
            return found

    def uri(self, table: str, query: str = "", *, port: int | None = None) -> str:
        return f"cassandra://127.0.0.1:{port or self.port}/{KEYSPACE}/{table}{query}"
