"""A Spark standalone cluster: a master and workers, as processes of their own on this machine."""

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
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
from job_process import await_true, kill, processes_of

from penstock.machine.class_archive import archive_options
from penstock.machine.jars import bare_filesystem_jar
from penstock.machine.java import find_java

__all__ = ["bare_python", "quick_jvm", "spark_cluster"]

_TAG = "PENSTOCK_TEST_RUN"
_ON_WORKER = "PENSTOCK_TEST_ON_WORKER"


def quick_jvm() -> tuple[str, str]:
    """The options and the class path with which a JVM of Spark starts with half of the work."""
    return " ".join(["-XX:TieredStopAtLevel=1", *archive_options(find_java())]), str(bare_filesystem_jar())


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: Sequence[str]) -> Iterator[str]:
    """The URL of a master with workers of one core each. Nothing of it stays behind."""
    tag = uuid.uuid4().hex
    home = Path(pyspark.__file__).parent
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options, class_path = quick_jvm()
    environment = {
        **inherited,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_DAEMON_CLASSPATH": class_path,
        _TAG: tag,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        on_worker = {_ON_WORKER: "1"} if name != "master" else {}
        with log.open("wb") as out:
            subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**environment, **on_worker},
                start_new_session=True,
            )
        return log

    deploy = "org.apache.spark.deploy"
    try:
        master_log = start(
            "master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        found: list[str] = []
        await_true(
            lambda: (
                found.extend(re.findall(r"Starting Spark master at (\S+)", master_log.read_text())) or found
            ),
            master_log.read_text,
        )
        own = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir"]
        logs = [
            start(name, f"{deploy}.worker.Worker", *own, str(folder / name), found[0]) for name in workers
        ]
        for log in logs:
            await_true(
                lambda log=log: "Successfully registered with master" in log.read_text(), log.read_text
            )
        yield found[0]
    finally:
        for pid in processes_of(tag):
            kill(pid, signal.SIGKILL)


def bare_python(folder: Path) -> Path:
    """An interpreter that on the cluster's workers has penstock's dependencies, but not penstock."""
    wrapper = folder / "bare-python"
    packages = sysconfig.get_path("purelib")
    # Without `site` no .pth file is read, by which a development install is found.
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
