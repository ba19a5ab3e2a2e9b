"""Contestants: who is measured, and the command that starts each of them on given topics."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from benchmarks.processes import EXAMPLE, binding_options
from benchmarks.report import note
from benchmarks.topics import Topics
from penstock.machine.java import find_java

__all__ = [
    "BEFORE",
    "FLINK",
    "LATENCY",
    "THROUGHPUT",
    "Contestant",
    "MissingToolError",
    "Penstock",
    "build_flink",
    "contestant",
    "penstock_command",
]

_FLINK_PROJECT: Final = Path(__file__).resolve().parent / "flink"
_TARGET: Final = _FLINK_PROJECT / "target"
_HEAP: Final = "2g"
# What Flink's own scripts open to its serialisers.
_OPENED: Final = (
    "lang",
    "lang.reflect",
    "util",
    "util.concurrent",
    "util.concurrent.atomic",
    "nio",
    "net",
    "io",
)


class MissingToolError(RuntimeError):
    """A tool that builds a contestant is not there; the message says which, and what to do."""


class Contestant(Protocol):
    """A system under test."""

    def command(self, topics: Topics, work: Path, cores: int) -> list[str]:
        """Return the command that runs the job for ever, with its checkpoints in the folder."""
        ...


@dataclass(frozen=True)
class Flink:
    """Flink in one JVM, with state on the heap. `tuned`: for latency, where the defaults wait for full buffers."""

    tuned: bool = False

    def command(self, topics: Topics, work: Path, cores: int) -> list[str]:
        """Return the command."""
        options = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
        path = f"{_TARGET / 'classes'}:{_TARGET / 'libraries'}/*"
        given = {
            "broker": topics.bootstrap,
            "readings": topics.readings,
            "settings": topics.settings,
            "heaters": topics.heaters,
            "checkpoints": str(work / "checkpoints"),
            "parallelism": str(cores),
        }
        if self.tuned:
            given |= {"buffer-timeout": "1 ms", "linger-ms": "0"}
        arguments = [f"{name}={value}" for name, value in given.items()]
        java = str(find_java().java)
        return [
            java,
            *options,
            f"-Xmx{_HEAP}",
            "-cp",
            path,
            "penstock.benchmarks.TemperatureControl",
            *arguments,
        ]


@dataclass(frozen=True)
class Penstock:
    """`penstock run` with a form of the job; without an interval in micro-batches.

    `checkout` is another checkout of penstock, with a `.venv`, whose command and job are used.
    """

    form: str = "job.py"
    interval: str | None = None
    checkout: Path | None = None
    memory_mb: int | None = None
    parallelism: int | None = None

    def command(self, topics: Topics, work: Path, cores: int) -> list[str]:
        """Return the command."""
        root = EXAMPLE.parents[1] if self.checkout is None else self.checkout.resolve()
        place = f"kafka://{topics.bootstrap}"
        uris = {
            "readings": f"{place}/{topics.readings}?format=protobuf&start=earliest",
            "settings": f"{place}/{topics.settings}?format=protobuf&start=earliest",
            "heaters": f"{place}/{topics.heaters}?format=protobuf",
        }
        job = root / EXAMPLE.relative_to(EXAMPLE.parents[1]) / self.form
        command = penstock_command(str(job), uris, work / "checkpoint", self.interval, cores)
        if self.memory_mb is not None:
            command += ["--memory", str(self.memory_mb)]
        if self.parallelism is not None:
            command += ["--parallelism", str(self.parallelism)]
        if self.checkout is not None:
            command[0] = str(root / ".venv" / "bin" / "penstock")
        return command


def penstock_command(
    job: str, uris: Mapping[str, str], checkpoint: Path, interval: str | None, cores: int
) -> list[str]:
    """Return the command that runs a job with these bindings; without an interval in micro-batches."""
    program = Path(sys.executable).with_name("penstock")
    command = [str(program), "run", job, "--checkpoint", str(checkpoint), "--master", f"local[{cores}]"]
    command += binding_options(uris)
    return command if interval is None else [*command, "--checkpoint-interval", interval]


FLINK: Final = ("flink", "flink_tuned")
THROUGHPUT: Final = ("flink", "vectorised", "per_record", "vectorised_real_time", "per_record_real_time")
LATENCY: Final = ("flink_tuned", "real_time", "real_time_one_slot", "micro_batch")
"""Contestants by name: those of the throughput, and those of the latency."""
BEFORE: Final = {
    "before": "micro_batch",
    "before_real_time": "real_time",
    "vectorised_before": "vectorised",
    "per_record_before": "per_record",
    "vectorised_real_time_before": "vectorised_real_time",
    "per_record_real_time_before": "per_record_real_time",
}
"""Those of another checkout by name, and who is the same of this one."""


def contestant(
    name: str, interval: str, before: Path | None = None, memory_mb: int | None = None
) -> Contestant:
    """Return a contestant by its name.

    Args:
        name: one of the above.
        interval: the checkpoint interval of real time.
        before: the other checkout, for those that run there.
        memory_mb: the memory that penstock may use in all; None: as it likes.

    """
    if name in FLINK:
        return Flink(tuned=name == "flink_tuned")
    checkout = before if name in BEFORE else None
    name = BEFORE.get(name, name)
    return Penstock(
        "vectorised.py" if name.startswith("vectorised") else "job.py",
        interval if "real_time" in name else None,
        checkout,
        memory_mb,
        1 if name.endswith("one_slot") else None,
    )


def build_flink(project: Path = _FLINK_PROJECT) -> None:
    """Build a job of Flink's with Maven, unless it is newer than its sources.

    Raises MissingToolError if Maven is not there or the build fails.
    """
    sources = [project / "pom.xml", EXAMPLE / "messages.proto", *project.rglob("src/**/*.*")]
    target = _TARGET if project == _FLINK_PROJECT else project / "target"
    jars = list(target.glob("*.jar"))
    if jars and (target / "libraries").is_dir():
        built_s = min(jar.stat().st_mtime for jar in jars)
        if all(source.stat().st_mtime < built_s for source in sources):
            return
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError(
            "There is no mvn on PATH, which builds Flink's job. Install Maven and a JDK 17 or later, "
            "or leave Flink out with --contestants, and --latency-contestants if there are some."
        )
    note("Building Flink's job with Maven ...")
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    done = subprocess.run(
        [maven, "-q", "-B", "package"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise MissingToolError(f"Maven did not build Flink's job ({project}):\n{last}")
