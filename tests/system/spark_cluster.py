"""A Spark standalone cluster: a master and workers as separate processes on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import pyspark
from job_process import await_true, kill, processes_of
from own_disk import DISK

from penstock.machine.class_archive import archive_options
from penstock.machine.jars import bare_filesystem_jar
from penstock.machine.java import find_java

__all__ = [
    "STANDS_STILL_S",
    "WORKERS",
    "SparkCluster",
    "bare_python",
    "of_a_machine",
    "quick_jvm",
    "spark_cluster",
]

WORKERS: Final = ("worker-1", "worker-2")
STANDS_STILL_S: Final = 900
"""For how long processes may stand still together, until they believe each other dead."""
_TAG = "PENSTOCK_TEST_RUN"
_ON_WORKER = "PENSTOCK_TEST_ON_WORKER"
_DEPLOY: Final = "org.apache.spark.deploy"


def quick_jvm() -> tuple[str, str]:
    """Return the options and the class path that make a Spark JVM start with half of the work."""
    return " ".join(["-XX:TieredStopAtLevel=1", *archive_options(find_java())]), str(bare_filesystem_jar())


def of_a_machine(disk: Path) -> dict[str, str]:
    """Return arguments that give a process a private disk."""
    return {DISK: str(disk), "TMPDIR": str(disk), "SPARK_LOCAL_DIRS": str(disk)}


class SparkCluster:
    """A master with workers; a context manager that leaves no processes behind.

    With `disk` each worker is as on its own machine: the folder of that path is an empty private disk, which
    holds all that it writes.
    """

    def __init__(
        self, folder: Path, workers: Sequence[str] = WORKERS, *, cores: int = 1, disk: Path | None = None
    ) -> None:
        self._folder = folder
        self.workers: Final = workers
        self._cores = cores
        self._disk = disk
        self._tag = uuid.uuid4().hex
        self._home = Path(pyspark.__file__).parent
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        options, class_path = quick_jvm()
        self._environment = {
            **inherited,
            # A busy machine may stall for long, so timeouts are long; killed processes are still detected at
            # once.
            "SPARK_DAEMON_JAVA_OPTS": f"{options} -Dspark.worker.timeout={STANDS_STILL_S}",
            "SPARK_DAEMON_CLASSPATH": class_path,
            _TAG: self._tag,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._of_workers = {
            _ON_WORKER: "1",
            **({} if disk is None else of_a_machine(disk)),
        }
        self.url = ""

    def __enter__(self) -> Self:
        try:
            log = self._start("master", {}, f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", "0")
            found: list[str] = []
            await_true(
                lambda: found.extend(re.findall(r"Starting Spark master at (\S+)", log.read_text())) or found,
                log.read_text,
            )
            self.url = found[0]
            for log in [self._start_worker(name) for name in self.workers]:
                _await_registered(log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pid in processes_of(self._tag):
            kill(pid, signal.SIGKILL)

    def _start(self, name: str, own: Mapping[str, str], *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        command = [
            str(self._home / "bin" / "spark-class"),
            *arguments,
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
        ]
        if DISK in own:
            command = [sys.executable, str(Path(__file__).with_name("own_disk.py")), "--exec", *command]
        with log.open("wb") as out:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**self._environment, **own},
                start_new_session=True,
            )
        return log

    def _start_worker(self, name: str) -> Path:
        sizes = ["--cores", str(self._cores), "--memory", f"{self._cores}g"]
        own = ["--host", "127.0.0.1", *sizes, "--work-dir", str(self._folder / name), self.url]
        return self._start(
            name, {**self._of_workers, "PENSTOCK_TEST_WORKER": name}, f"{_DEPLOY}.worker.Worker", *own
        )

    def restart_worker(self, name: str) -> None:
        """Restart a worker that was killed."""
        _await_registered(self._start_worker(name))

    def worker(self, name: str) -> int:
        """Return the process of a worker."""
        (found,) = self._processes(name, f"{_DEPLOY}.worker.Worker")
        return found

    def executors(self) -> list[int]:
        """Return the executors of all workers."""
        return sorted(
            pid for name in self.workers for pid in self._processes(name, "CoarseGrainedExecutorBackend")
        )

    def _processes(self, name: str, command: str) -> list[int]:
        mark = f"PENSTOCK_TEST_WORKER={name}".encode()
        return [
            pid
            for pid, shown in processes_of(self._tag).items()
            if command in shown and mark in _environment_of(pid)
        ]


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _await_registered(log: Path) -> None:
    await_true(lambda: "Successfully registered with master" in log.read_text(), log.read_text)


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: Sequence[str]) -> Iterator[str]:
    """Start a cluster with one core per worker; yield its URL."""
    with SparkCluster(folder, workers) as cluster:
        yield cluster.url


def bare_python(folder: Path) -> Path:
    """Return an interpreter whose workers have penstock's dependencies, but not penstock."""
    wrapper = folder / "bare-python"
    packages = sysconfig.get_path("purelib")
    # Without `site` no .pth file is read, through which a development install is found.
    wrapper.write_text(
        "#!/bin/sh\n"
        f'if [ -n "${_ON_WORKER}" ]; then\n'
        f'    export PYTHONPATH="$PYTHONPATH:"{shlex.quote(packages)}\n'
        f'    exec {shlex.quote(sys.executable)} -S "$@"\n'
        "fi\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper
