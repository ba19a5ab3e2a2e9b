"""The class archive: Spark's classes as a JVM has loaded them once, which later JVMs map into memory.

Half of the work of a JVM that starts Spark is to load and verify some 15,000 classes. A dynamic archive of them (Java
Enhancement Proposal 350) saves most of it. Java checks whether an archive fits its version and class path, and ignores
one that does not.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.machine.cache import cache_folder, write_whole
from penstock.machine.jars import jars_folder, pyspark_folder, read_pinned_jars
from penstock.machine.java import JavaHome

__all__ = ["archive_options", "class_archive", "make_class_archive"]

_TIMEOUT_S: Final = 600
_OWNER: Final = ".owner"
"""The suffix of a file next to the archive that names its PySpark."""

_JOB: Final = '''
import penstock as ps


class Last(ps.ProcessFunction):
    """Keeps the last value of each key."""

    last = ps.ValueState(float)

    def process_record(self, record, ctx):
        self.last.set(record.value)
        yield record


job = ps.Job("class-archive")
values = job.data_stream("values", schema="key INT, value DOUBLE")
values.key_by("key").process("last", Last(), output="key INT, value DOUBLE").sink_to("out")
'''


def class_archive(java: JavaHome) -> Path:
    """Return the path of the archive of a Java, whether or not it exists. Another Java or PySpark has another one."""
    release = java.home / "release"
    (filesystem,) = read_pinned_jars()["filesystem"]
    parts = [
        str(java.home),
        release.read_text() if release.is_file() else str(java.version),
        str(pyspark_folder()),
        importlib.metadata.version("pyspark"),
        # This jar is on the class path of every job, whether or not it was fetched already.
        str(jars_folder() / filesystem.file_name),
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return cache_folder() / f"spark-classes-{digest[:12]}.jsa"


def archive_options(java: JavaHome) -> list[str]:
    """Return the options that make a JVM use the archive; empty if there is no archive."""
    archive = class_archive(java)
    if not archive.is_file():
        return []
    return [
        f"-XX:SharedArchiveFile={archive}",
        # By default the archive is moved to a random address, so that each JVM has a changed copy of all of it.
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:ArchiveRelocationMode=0",
        # Java warns about an archive that does not fit, by default on standard output, where the command line's results
        # go.
        "-Xlog:disable",
        "-Xlog:all=warning:stderr",
    ]


def make_class_archive(java: JavaHome) -> Path | None:
    """Make the archive if it is missing, by running a small job, which takes some 20 s. None if that Java cannot."""
    archive = class_archive(java)
    if archive.is_file():
        return archive
    with tempfile.TemporaryDirectory(prefix="penstock-classes-") as folder:
        made = Path(folder) / archive.name
        if not _run_job(Path(folder), [f"-XX:ArchiveClassesAtExit={made}"]) or not made.is_file():
            return None
        _remove_unused(archive.parent)
        # The cache may be on another disk than the temporary folder.
        write_whole(archive, made.read_bytes())
        archive.with_suffix(_OWNER).write_text(str(pyspark_folder()))
    return archive


def _remove_unused(folder: Path) -> None:
    """Remove the archives of PySparks that no longer exist, and of this one, which gets a new archive."""
    for note in folder.glob(f"spark-classes-*{_OWNER}"):
        owner = Path(note.read_text())
        if owner == pyspark_folder() or not owner.exists():
            note.with_suffix(".jsa").unlink(missing_ok=True)
            note.unlink(missing_ok=True)


def _run_job(folder: Path, options: Sequence[str]) -> bool:
    """Run a small job to its end, with options for its JVM. Return whether it succeeded."""
    job, values = folder / "job.py", folder / "values"
    job.write_text(_JOB)
    values.mkdir()
    (values / "values.jsonl").write_text('{"key": 1, "value": 2.0}\n')
    command = [sys.executable, "-m", "penstock.cli", "run", str(job), "--bounded"]
    command += [
        f"-Dvalues=jsonl:{values}",
        f"-Dout=jsonl:{folder / 'out'}",
        f"--checkpoint={folder / 'checkpoint'}",
    ]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(options)}
    try:
        subprocess.run(command, capture_output=True, env=environment, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
