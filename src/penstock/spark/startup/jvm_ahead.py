"""JVM ahead: Spark's JVM, started while this process still imports modules, before it is known who will use it.

The session takes the JVM only if it would now start the same one: with the same settings, in the same environment and
folder. A job file that changes any of them, or opens a session itself, gets what it asked for, and the JVM ends.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from penstock.errors import PenstockError
from penstock.machine.jars import pyspark_folder
from penstock.spark.startup.jvm_start import (
    JvmStart,
    jvm_environment,
    jvm_settings,
    start_environment,
    variables_set,
)

__all__ = ["JvmAhead", "discard_jvm_ahead", "jvm_ahead", "take_jvm_ahead"]

_POLL_S: Final = 0.01
# With any of these in the environment, PySpark finds Spark or its JVM in another way.
_OTHER_WAYS: Final = ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
_LENGTH: Final = struct.Struct("!i")


class JvmAhead:
    """A JVM that starts, as PySpark would start it. Its standard error is kept until `follow`."""

    def __init__(self, start: JvmStart) -> None:
        self._start: Final = start
        self._environment: Final = jvm_environment(start)
        self._folder: Final = Path.cwd()
        self._place: Final = Path(tempfile.mkdtemp(prefix="penstock-jvm-"))
        self._output: Final[IO[bytes]] = (self._place / "output").open("w+b")
        settings = [f"--conf={name}={value}" for name, value in jvm_settings(start).items()]
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        variables = {
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._place / "address"),
        }
        # Ctrl-C is for the driver.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process: Final = subprocess.Popen(
                [pyspark_folder() / "bin" / "spark-submit", *settings, *arguments],
                # The JVM ends when this process does.
                stdin=subprocess.PIPE,
                stderr=self._output,
                # So is a SIGTERM to all processes of the job, such as that of `timeout`.
                process_group=0,
                env={**self._environment, **start_environment(start), **variables},
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def is_for(self, start: JvmStart) -> bool:
        """Return whether a JVM that is started now would be the same."""
        return (start, jvm_environment(start), Path.cwd()) == (self._start, self._environment, self._folder)

    def connect(self) -> Any:
        """Wait for the JVM, and return PySpark's gateway to it; None if it has ended."""
        from pyspark.java_gateway import launch_gateway

        address = self._place / "address"
        while not address.exists():
            if self._process.poll() is not None:
                self.end()
                return None
            time.sleep(_POLL_S)
        found = address.read_bytes()
        port, length = _LENGTH.unpack_from(found)[0], _LENGTH.unpack_from(found, 4)[0]
        variables = {
            "PYSPARK_GATEWAY_PORT": str(port),
            "PYSPARK_GATEWAY_SECRET": found[8 : 8 + length].decode(),
        }
        with variables_set(variables):
            gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark has no types here
        gateway.proc = self._process
        return gateway

    def follow(self, gateway: Any, output: Path, properties: Mapping[str, str]) -> None:
        """Let the JVM append its standard error to a file, and write its log as these system properties say.

        What it has printed before is appended first.
        """
        jvm = gateway.jvm
        with output.open("ab") as file:
            self._output.seek(0)
            shutil.copyfileobj(self._output, file)
        stream = jvm.java.io.PrintStream(jvm.java.io.FileOutputStream(str(output), True), True)  # Java's
        jvm.java.lang.System.setErr(stream)
        for name, value in properties.items():
            jvm.java.lang.System.setProperty(name, value)
        jvm.org.apache.logging.log4j.LogManager.getContext(False).reconfigure()  # Java's
        self._forget()

    def end(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._forget()

    def _forget(self) -> None:
        self._output.close()
        shutil.rmtree(self._place, ignore_errors=True)


_ahead: Final[list[JvmAhead]] = []
"""The JVM that nobody has taken yet, if there is one."""


@contextlib.contextmanager
def jvm_ahead(start: JvmStart) -> Iterator[None]:
    """Start a JVM for a session on this machine, which it may take meanwhile."""
    if start.is_local and not any(name in os.environ for name in _OTHER_WAYS):
        # The code that needs the JVM finds the same problem, and reports what it is needed for.
        with contextlib.suppress(PenstockError, OSError):
            _ahead.append(JvmAhead(start))
    try:
        yield
    finally:
        discard_jvm_ahead()


def take_jvm_ahead(start: JvmStart) -> JvmAhead | None:
    """Take the JVM, if there is one and a JVM started now would be the same."""
    if _ahead and _ahead[0].is_for(start):
        return _ahead.pop()
    discard_jvm_ahead()
    return None


def discard_jvm_ahead() -> None:
    """End the JVM, if nobody has taken it."""
    while _ahead:
        _ahead.pop().end()
