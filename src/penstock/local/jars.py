"""Jars: fetch the pinned Java libraries once, and check that they are what was pinned."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.local.cache import cache_folder
from penstock.local.java import find_java

__all__ = ["JarResolutionError", "bare_filesystem_jar", "kafka_broker_jars", "spark_kafka_jars"]


class JarResolutionError(PenstockError):
    """A Java library that penstock needs could not be fetched, or is not the pinned one."""

    fault = "external"
    retryable = True


@dataclass(frozen=True)
class Jar:
    """A pinned jar by its coordinates, with the SHA-256 of its content."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's name."""
        return f"{self.name}-{self.version}.jar"


_SPARK_KAFKA: Final = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
_BARE_FILESYSTEM: Final = Jar(
    "com.globalmentor",
    "hadoop-bare-naked-local-fs",
    "0.1.0",
    "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62",
)
BROKER_VERSION: Final = "4.2.0"


def spark_kafka_jars() -> list[Path]:
    """Spark's Kafka connector and what it needs."""
    return _pinned(_SPARK_KAFKA)


def bare_filesystem_jar() -> Path:
    """A local file system for Hadoop that does not fork a process for each file."""
    return _pinned((_BARE_FILESYSTEM,))[0]


def fetch_spark_jars() -> list[Path]:
    """All jars that jobs may need, fetched together."""
    return _pinned((*_SPARK_KAFKA, _BARE_FILESYSTEM))


def kafka_broker_jars() -> Path:
    """A folder with the jars of an Apache Kafka broker."""
    folder = cache_folder() / f"kafka-broker-{BROKER_VERSION}"
    with _locked(folder.name):
        if not folder.exists():
            _note(f"Fetching Apache Kafka {BROKER_VERSION} (43 MB, once)")
            dependency = _dependency("org.apache.kafka", "kafka_2.13", BROKER_VERSION, transitive=True)
            _fetch([dependency], folder)
    return folder


def _pinned(jars: Sequence[Jar]) -> list[Path]:
    """The jars from the offline folder or the cache, fetched first where they are missing."""
    offline = os.environ.get("PENSTOCK_JARS")
    if offline and all((Path(offline) / jar.file_name).is_file() for jar in jars):
        return [_checked(Path(offline) / jar.file_name, jar) for jar in jars]
    folder = cache_folder() / "jars"
    missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
    if missing:
        with _locked("jars"):
            missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
            if missing:
                _note(f"Fetching {len(missing)} Spark connector jars (10 MB, once)")
                _fetch_into(missing, folder)
    return [folder / jar.file_name for jar in jars]


def _fetch_into(jars: Sequence[Jar], folder: Path) -> None:
    """Fetch jars next to those that are in the folder already; each appears whole and checked."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        fetched = Path(temporary) / "fetched"
        _fetch([_dependency(jar.organisation, jar.name, jar.version, transitive=False) for jar in jars], fetched)
        for jar in jars:
            _checked(fetched / jar.file_name, jar).replace(folder / jar.file_name)


def _checked(path: Path, jar: Jar) -> Path:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise JarResolutionError(
            f"{path} is not the pinned {jar.name} {jar.version}: its SHA-256 is {found}, not {jar.sha256}. Delete it and "
            "run again."
        )
    return path


def _dependency(organisation: str, name: str, version: str, *, transitive: bool) -> str:
    configuration = "*->master,runtime" if transitive else "*->master"
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{version}" transitive="{str(transitive).lower()}" '
        f'conf="{configuration}"/>'
    )


def _fetch(dependencies: Sequence[str], target: Path) -> None:
    """Resolve with the Ivy that PySpark brings, whose defaults name the public repository."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        ivy = Path(temporary) / "ivy.xml"
        ivy.write_text(
            '<ivy-module version="2.0"><info organisation="penstock" module="jars"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(dependencies)}</dependencies></ivy-module>"
        )
        out = Path(temporary) / "out"
        command = [str(find_java().java), "-cp", f"{_spark_jars()}/*", "org.apache.ivy.Main"]
        command += ["-cache", f"{temporary}/cache", "-ivy", str(ivy), "-retrieve", f"{out}/[artifact]-[revision].[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode != 0 or not out.is_dir():
            raise JarResolutionError(
                f"Java libraries could not be fetched: {_ivy_cause(done.stdout + done.stderr)}. Check the network, or put "
                f"the jars into a folder and name it in PENSTOCK_JARS (or into {cache_folder() / 'jars'})."
            )
        shutil.move(str(out), target)


def _spark_jars() -> Path:
    """The folder of jars in PySpark's wheel, found without loading PySpark."""
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarResolutionError("PySpark is not installed; run 'make setup'.")
    return Path(spec.origin).parent / "jars"


def _ivy_cause(output: str) -> str:
    lines = [line.strip(" :\t") for line in output.splitlines() if "not found" in line or "ERROR" in line or "rror:" in line]
    return lines[0] if lines else "no answer from the repository"


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Let one process at a time fetch."""
    with (cache_folder() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _note(text: str) -> None:
    sys.stderr.write(f"{text} ...\n")
    sys.stderr.flush()
