"""A real HDFS for tests: a NameNode and a DataNode from Hadoop's jars, on free ports, which tests kill and
restart.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import pyspark
from debian import skipped_where_missing
from hdfs_native import Client, WriteOptions
from kdc_server import REALM, KdcServer
from server_jars import server_jars

from penstock.machine.java import find_java
from penstock.machine.local_server import LocalServer, free_port, listens

__all__ = ["HdfsServer"]

# The jars of Spark that belong to Hadoop; scanning the rest would slow each start.
_OF_SPARK: Final = (
    *("hadoop-client-api-*", "hadoop-client-runtime-*", "javax.servlet-api-*", "jcl-over-slf4j-*"),
    *("slf4j-api-*", "log4j-slf4j2-impl-*", "log4j-api-*", "log4j-core-*", "log4j-1.2-api-*"),
)
_JVM: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
_SERVER: Final = "org.apache.hadoop.hdfs.server"


class _Daemon(LocalServer):
    """One of the two server processes."""

    def __init__(self, name: str, server: HdfsServer, answers: Callable[[], bool]) -> None:
        super().__init__(name, server.folder / f"{name}.log")
        self._main = f"{_SERVER}.{name.lower()}.{name}"
        self._server = server
        self._answers = answers

    def start(self) -> None:
        self.launch(self._server.command(self._main), self._answers, folder=self._server.folder)

    def kill(self) -> None:
        """Kill -9."""
        self.signal(signal.SIGKILL)


class HdfsServer:
    """One NameNode and one DataNode; a context manager. Their ports and files stay the same over restarts.

    With a KDC they accept only users with a ticket, and encrypt traffic.
    """

    def __init__(self, folder: Path, kdc: KdcServer | None = None) -> None:
        self.folder = folder
        with skipped_where_missing():
            jars = server_jars("hdfs")
        spark = Path(pyspark.__file__).parent / "jars"
        found = [path for name in _OF_SPARK for path in spark.glob(f"{name}.jar")]
        self._class_path = ":".join(map(str, (folder, *jars, *found)))
        self.port, data_port = free_port(), free_port()
        loopback = {"namenode.http-address", "datanode.http.address", "datanode.ipc.address"}
        core, hdfs = ({}, {}) if kdc is None else _secured(kdc)
        self._options = () if kdc is None else (f"-Djava.security.krb5.conf={kdc.settings}",)
        core |= {"fs.defaultFS": self.url, "hadoop.tmp.dir": str(folder / "data")}
        _write(folder / "core-site.xml", core)
        _write(
            folder / "hdfs-site.xml",
            {
                "dfs.replication": "1",
                "dfs.datanode.address": f"127.0.0.1:{data_port}",
                "dfs.namenode.safemode.extension": "0",
                **{f"dfs.{name}": "127.0.0.1:0" for name in loopback},
                **hdfs,
            },
        )
        self.name_node = _Daemon("NameNode", self, lambda: listens(self.port))
        self.data_node = _Daemon("DataNode", self, self._takes_files)

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def command(self, main: str, *arguments: str) -> list[str]:
        return [str(find_java().java), *_JVM, *self._options, "-cp", self._class_path, main, *arguments]

    def client(self) -> Client:
        """Return a client of the user who has started the servers, and so has all rights."""
        return Client(self.url, {"dfs.client.failover.max.attempts": "0"})

    def __enter__(self) -> Self:
        try:
            format_it = self.command(f"{_SERVER}.namenode.NameNode", "-format", "-nonInteractive")
            subprocess.run(format_it, cwd=self.folder, check=True, capture_output=True)
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start both, and wait until files can be written."""
        self.name_node.start()
        self.data_node.start()

    def _takes_files(self) -> bool:
        """Return whether the DataNode has registered, and the NameNode has left safe mode."""
        try:
            with self.client().create("/started", WriteOptions(overwrite=True)) as file:
                file.write(b"started")
        except (OSError, RuntimeError):
            return False
        return True

    def kill(self) -> None:
        """Kill -9."""
        for daemon in (self.data_node, self.name_node):
            daemon.kill()


def _secured(kdc: KdcServer) -> tuple[dict[str, str], dict[str, str]]:
    """Return settings for `core-site.xml` and `hdfs-site.xml`."""
    keytab = str(kdc.keytab("hdfs/localhost", "HTTP/localhost"))
    servers = {
        **{f"dfs.{name}.kerberos.principal": f"hdfs/localhost@{REALM}" for name in ("namenode", "datanode")},
        **{f"dfs.{name}.keytab.file": keytab for name in ("namenode", "datanode")},
        "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
        "dfs.web.authentication.kerberos.keytab": keytab,
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "privacy",
        # A secure DataNode needs a privileged port, or certificates for its pages, which no test reads.
        "ignore.secure.ports.for.testing": "true",
    }
    login = {"hadoop.security.authentication": "kerberos", "hadoop.security.authorization": "true"}
    return {**login, "hadoop.rpc.protection": "privacy"}, servers


def _write(path: Path, settings: dict[str, str]) -> None:
    found = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{found}</configuration>")
