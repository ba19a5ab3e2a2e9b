"""A real OpenSearch for tests: one node from its jars, on free ports, which tests kill and restart."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any, Final

import httpx
from debian import skipped_where_missing
from server_jars import server_jars

from penstock.machine.java import find_java
from penstock.machine.local_server import LocalServer, free_port

_DESCRIPTOR: Final = """\
name=transport-netty4
description=HTTP
version=2.19.6
opensearch.version=2.19.6
java.version=11
classname=org.opensearch.transport.Netty4Plugin
has.native.controller=false
"""
_LOGGING: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class OpenSearchServer(LocalServer):
    """One node that writes each change to disk before it answers; a context manager. Its ports stay the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__("OpenSearch", folder / "log")
        self._folder = folder
        self.port, self._transport_port = free_port(), free_port()
        with skipped_where_missing():
            self._jars, module = server_jars("opensearch"), server_jars("opensearch-http")
        http = folder / "modules" / "transport-netty4"
        for path in (http, folder / "config", folder / "plugins"):
            path.mkdir(parents=True)
        for jar in module:
            (http / jar.name).symlink_to(jar)
        (http / "plugin-descriptor.properties").write_text(_DESCRIPTOR)
        (folder / "config" / "log4j2.properties").write_text(_LOGGING)
        settings = {
            "cluster.name": "tests",
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": self.port,
            "transport.port": self._transport_port,
            "path.data": str(folder / "data"),
            "path.logs": str(folder / "logs"),
        }
        # JSON is YAML.
        (folder / "config" / "opensearch.yml").write_text(json.dumps(settings))
        # Otherwise it may not do anything except log to the folder.
        (folder / "config" / "jvm.policy").write_text("grant { permission java.security.AllPermission; };\n")

    def start(self) -> None:
        """Start the node and wait until it answers."""
        properties = {
            "java.security.manager": "allow",
            # Modules are plugins, whose rights depend on a policy.
            "java.security.policy": f"file://{self._folder}/config/jvm.policy",
            "opensearch.path.home": self._folder,
            "opensearch.path.conf": self._folder / "config",
            "opensearch.distribution.type": "tar",
            "log4j2.disable.jmx": "true",
            # Without JNA it cannot detect that it runs as root, which it refuses.
            "jna.nosys": "true",
            "jna.nounpack": "true",
        }
        command = [
            str(find_java().java),
            *("-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-cp", ":".join(map(str, self._jars))),
            "org.opensearch.bootstrap.OpenSearch",
        ]
        self.launch(command, self._answers, folder=self._folder)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=5s", timeout=10)
            return answer.status_code == 200
        return False

    def kill(self) -> None:
        """Kill -9."""
        self.signal(signal.SIGKILL)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request."""
        answer = httpx.request(method, f"{self.url}{path}", json=body, timeout=60)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """Return the documents of an index by id."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("GET", f"/{index}/_search?size=10000")["hits"]["hits"]
        return {one["_id"]: one["_source"] for one in found}

    def uri(self, index: str, query: str = "?id={sensor}") -> str:
        return f"opensearch://127.0.0.1:{self.port}/{index}{query}"
