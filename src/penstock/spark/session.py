"""The Spark session: settings that keep state safe from the first run on, and code for the workers."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # py4j has no stubs
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import ExternalSystemError, JobFailedError
from penstock.machine.limits import LOCAL_HEAP_MB
from penstock.machine.priority import yield_cores
from penstock.spark.startup.fork_server import start_fork_server
from penstock.spark.startup.jvm_ahead import discard_jvm_ahead, take_jvm_ahead
from penstock.spark.startup.jvm_start import (
    JvmStart,
    jvm_environment,
    jvm_settings,
    start_environment,
    variables_set,
)
from penstock.spark.state_mount import store_settings

__all__ = ["SessionSettings", "code_archive", "has_session", "open_session", "ship_code"]

# The settings of every session. Spark keeps those of the state store in a checkpoint for its lifetime.
_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
    # The thread that stops Spark's state stores holds the lock for which their maintenance may be waiting. By default
    # that lasts six minutes. Interrupted maintenance is repeated later.
    "spark.sql.streaming.stateStore.maintenanceShutdownTimeout": "2",
    "spark.sql.streaming.stateStore.maintenanceForceShutdownTimeout": "1",
    # Spark would generate code in each task again, which takes a third of a small micro-batch, and our rows are few.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Packed rows are few and large, so batches between Spark and Python are bounded by bytes rather than rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    # Every micro-batch is planned again, and adaptive execution would cost time without a gain.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    # Each task of a level has a page for sorting, on the heap. By default it takes 32 MB where the heap may have 2 GB,
    # even for one row. Larger rows get larger pages.
    "spark.buffer.pageSize": "2m",
    "spark.python.worker.reuse": "true",
    # Spark sets this for some kinds of Python code only, and only code with the same environment reuses a worker.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A state call is a round trip between worker and JVM. It is much faster over a Unix socket than over TCP, which
    # matters for small batches.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

# The setting of Spark for the process that workers are forked from.
_DAEMON: Final = "spark.python.daemon.module"
_OWN_DAEMON: Final = "penstock.spark.startup.worker_daemon"
_ARCHIVE: Final = "penstock-code-"

# PySpark checks here for NumPy when it converts arguments for Java. That also imports pandas, in 0.25 s.
_FOR_CALLS: Final = "pyspark.testing.utils"

# Classes that PySpark names without their packages, and packages.
_OFTEN_NAMED: Final = ("PythonSQLUtils", "PythonUtils", "SimplePythonFunction", "functions", "java", "py4j")

# The place where Java looks for extensions of Spark's sessions, and the jar with the only ones that Spark has.
_EXTENSIONS: Final = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
_LEARNING: Final = "/spark-mllib_"

OUTPUT_FILE: Final = "output.log"
"""The file for the output of workers and the JVM, next to Spark's log."""

_MASTER_TIMEOUT_S: Final = 10.0

_LOCAL_FILESYSTEM: Final[dict[str, str]] = {
    # Without native Hadoop libraries, each checkpoint file costs a forked chmod. This file system needs none.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session.

    `parallelism` is the number of tasks of each keyed level. `log_file` is the file of Spark's log; the output of
    workers is next to it. `log_bytes` is the size at which Spark's log is rotated; one older file is kept. `bounded`
    means that the run ends with its input, and `lean` that the session only reads state, with as little memory as
    possible. `heap_mb` is the limit of the JVM's heap on this machine; a `frugal` JVM gives back what it does not use.
    A JVM that `yields` leaves the cores of this machine to the workers where both want them. The state may be
    on a `store`: "s3" or "hdfs".
    """

    app_name: str
    master: str
    parallelism: int
    log_file: Path
    log_bytes: int = 16 << 20
    bounded: bool = False
    lean: bool = False
    heap_mb: int = LOCAL_HEAP_MB
    frugal: bool = False
    yields: bool = False
    retained_batches: int = 100
    store: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def jvm(self) -> JvmStart:
        """The settings that matter when the JVM starts."""
        return JvmStart(self.master, self.heap_mb, self.lean or self.frugal, self.more)

    @property
    def log_properties(self) -> dict[str, str]:
        """The system properties that the configuration of Spark's log reads."""
        return {"penstock.log": str(self.log_file), "penstock.log.bytes": str(self.log_bytes)}


@contextlib.contextmanager
def open_session(settings: SessionSettings) -> Iterator[SparkSession]:
    """Open a Spark session with penstock's settings.

    If this process has a Spark context already, the session shares it and leaves it running. Raises JavaNotFoundError
    without a suitable Java, ExternalSystemError when Spark does not start, and JobFailedError when its JVM ends during
    the session.
    """
    running = _running_session()
    if running is not None:
        discard_jvm_ahead()
        session = running.newSession()
        for name, value in _all_settings(settings).items():
            if name.startswith("spark.sql."):
                session.conf.set(name, value)
        yield session
        return
    session = _start(settings)
    try:
        yield session
    except (Py4JError, OSError, EOFError) as e:
        if _jvm_has_ended(session):
            raise JobFailedError(
                "Spark's JVM has ended unexpectedly; it may have been killed because the machine ran out of memory. "
                "Start the job again with its checkpoint; it continues where it was. "
                f"(Spark's log: {settings.log_file})"
            ) from e
        raise
    finally:
        # Without a JVM there is nothing to stop, and each attempt fails.
        with contextlib.suppress(Py4JError, OSError, EOFError):
            session.stop()


def has_session() -> bool:
    """Return whether this process has a working session."""
    return _running_session() is not None


def _running_session() -> SparkSession | None:
    """Return the working session of this process, from any thread, or None if there is none."""
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001  # of all threads
    if session is None or session._sc._jsc is None:  # noqa: SLF001  # it was stopped
        return None
    return session


def _jvm_has_ended(session: SparkSession) -> bool:
    """Return whether the JVM has ended. Waits up to 2 s, since it closes its connections before it ends."""
    try:
        # PySpark's gateway has this attribute if it started the JVM itself.
        _gateway(session).proc.wait(2)
    except (AttributeError, subprocess.TimeoutExpired):
        return False
    return True


def _gateway(session: SparkSession) -> Any:
    return session.sparkContext._gateway  # noqa: SLF001  # nothing public has the JVM's process


def _start(settings: SessionSettings) -> SparkSession:
    _check_master(settings.master)
    found = _all_settings(settings)
    # On a store Spark needs jars that a JVM has from its start.
    has_jvm = SparkContext._gateway is not None  # noqa: SLF001  # nothing public says so
    ahead = None if settings.store or has_jvm else take_jvm_ahead(settings.jvm)
    os.environ.update(jvm_environment(settings.jvm))
    is_local = settings.jvm.is_local
    try:
        with _stderr_to(settings.log_file.with_name(OUTPUT_FILE)):
            if is_local:
                start_fork_server()
            # This process waits for the JVM meanwhile, and needs the module for its first call.
            threading.Thread(target=importlib.import_module, args=(_FOR_CALLS,), daemon=True).start()
            gateway = None if ahead is None else ahead.connect()
            if ahead is not None and gateway is not None:
                ahead.follow(gateway, settings.log_file.with_name(OUTPUT_FILE), settings.log_properties)
            with variables_set(start_environment(settings.jvm)):
                context = SparkContext(conf=SparkConf().setAll([*found.items()]), gateway=gateway)
            session = _new_session(context, found)
        _prepare(session, settings)
    except (Py4JError, PySparkException, OSError) as e:
        raise ExternalSystemError(
            f"Spark cannot be started with the master {settings.master!r}: {_reason(e)} "
            f"(Spark's log: {settings.log_file})"
        ) from e
    return session


def _prepare(session: SparkSession, settings: SessionSettings) -> None:
    """Change what only a running JVM can be told. Stops the session when that fails."""
    try:
        session.sparkContext.setLogLevel("WARN")
        if settings.jvm.is_local:
            if settings.yields:
                # The fork server, and so the workers, are no children of the JVM and keep their priority.
                yield_cores(_gateway(session).proc.pid)
            _interpret_everywhere(session)
        _shorten_hadoop_settings(session)
        _keep_names(session)
        _silence(session)
    except (Py4JError, PySparkException, OSError):
        with contextlib.suppress(Py4JError, PySparkException, OSError):
            session.stop()
        raise


def _new_session(context: SparkContext, settings: Mapping[str, str]) -> SparkSession:
    """Return a session without the functions of Spark's machine learning, which take 0.7 s to load.

    Java looks for extensions of sessions where the thread's class loader finds them. If there are only Spark's own, the
    thread looks elsewhere meanwhile.
    """
    jvm: Any = context._jvm  # noqa: SLF001  # nothing public has the JVM
    thread = jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    places = [place.toString() for place in jvm.java.util.Collections.list(loader.getResources(_EXTENSIONS))]
    if context.getConf().contains("spark.sql.extensions") or any(_LEARNING not in place for place in places):
        return SparkSession(context, options=dict(settings))
    kind = jvm.java.lang.Class.forName("org.apache.spark.sql.classic.SparkSession", True, loader)  # Java's
    (constructor,) = (one for one in kind.getConstructors() if one.getParameterCount() == 2)
    gateway: Any = context._gateway  # noqa: SLF001  # as above
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = context._jsc.sc()  # noqa: SLF001  # as above
    arguments[1] = jvm.java.util.HashMap(dict(settings))
    thread.setContextClassLoader(jvm.java.lang.ClassLoader.getPlatformClassLoader())
    try:
        made = constructor.newInstance(arguments)
    finally:
        thread.setContextClassLoader(loader)
    return SparkSession(context, made)


def _interpret_everywhere(session: SparkSession) -> None:
    """Make the session's choice whether to generate code the default of its JVM.

    The thread that serves the state of a task does not know the settings of the session. It would generate code for
    each map of state in each task, which takes longer than all its other work in a small micro-batch.
    """
    jvm: Any = session._jvm  # noqa: SLF001  # nothing public has the defaults
    entry = jvm.org.apache.spark.sql.internal.SQLConf.CODEGEN_FACTORY_MODE()
    chosen = session._jsparkSession.sessionState().conf().getConf(entry)  # noqa: SLF001  # PySpark has no public way
    default = entry.getClass().getDeclaredField("_defaultValue")
    default.setAccessible(True)
    default.set(entry, chosen)


def _shorten_hadoop_settings(session: SparkSession) -> None:
    """Let Hadoop forget which file each of its 1,100 settings came from.

    The tasks of each micro-batch get all settings, with their files, and Hadoop compresses each name separately. So
    they take 9 ms; without the files 1 ms.
    """
    context: Any = session.sparkContext
    settings = context._jsc.hadoopConfiguration()  # noqa: SLF001  # nothing public has them
    # Its files are read when it is first asked for anything.
    settings.size()
    files = settings.getClass().getDeclaredField("updatingResource")
    files.setAccessible(True)
    # A new map is one call to the JVM; to clear the old one, py4j would make five for each setting.
    files.set(settings, context._jvm.java.util.concurrent.ConcurrentHashMap())  # noqa: SLF001  # as above


def _keep_names(session: SparkSession) -> None:
    """Let py4j look up the packages and classes only once that PySpark needs again and again.

    For a name without a package, the JVM looks for a class in each imported package, and so in all jars: over 1 ms.
    """
    jvm: Any = session._jvm  # noqa: SLF001  # nothing public has the JVM
    for name in _OFTEN_NAMED:
        setattr(jvm, name, getattr(jvm, name))


def _silence(session: SparkSession) -> None:
    """Keep PySpark and py4j from writing stack traces to standard error when their connections to the JVM break.

    The same errors also reach this process as exceptions.
    """
    server: Any = session.sparkContext._accumulatorServer  # noqa: SLF001  # PySpark has no public way
    server.handle_error = _ignore_error
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_py4j)


def _ignore_error(request: Any, client_address: Any) -> None:
    """Do nothing, instead of printing a stack trace."""


def _not_py4j(record: logging.LogRecord) -> bool:
    """Return whether a record is not one that py4j writes to the root logger itself."""
    return "py4j" not in Path(record.pathname).parts


def _check_master(master: str) -> None:
    """Raise ExternalSystemError if no standalone master can be reached. Spark itself would try for a minute."""
    servers = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    reasons = []
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _MASTER_TIMEOUT_S).close()
        except (OSError, ValueError, OverflowError) as e:
            reasons.append(f"{server}: {e}")
        else:
            return
    if reasons:
        raise ExternalSystemError(
            f"No Spark master can be reached ({'; '.join(reasons)}). Start it, or correct --master {master}."
        )


def _reason(error: Exception) -> str:
    """Return the message of an error in one line; of a JVM exception only its message."""
    if isinstance(error, Py4JNetworkError):
        return "its JVM has ended; it may have been killed because the machine ran out of memory."
    java = getattr(error, "java_exception", None)
    text = str(error)
    if java is not None:
        with contextlib.suppress(Py4JError, OSError):
            text = str(java.getMessage())
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes started meanwhile, the JVM and the workers, to a file."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _all_settings(settings: SessionSettings) -> dict[str, str]:
    found = dict(_SETTINGS)
    found["spark.sql.shuffle.partitions"] = str(settings.parallelism)
    found |= jvm_settings(settings.jvm, settings.log_properties)
    found["spark.app.name"] = settings.app_name
    found["spark.sql.streaming.minBatchesToRetain"] = str(settings.retained_batches)
    if settings.master.startswith("local"):
        found |= _LOCAL_FILESYSTEM
        found["spark.driver.bindAddress"] = "127.0.0.1"
        found["spark.driver.host"] = "127.0.0.1"
        # On other machines penstock arrives as a file of the job, too late for this setting.
        found[_DAEMON] = _OWN_DAEMON
    if settings.store:
        found |= store_settings(settings.store, os.environ)
    jars = [one["spark.jars"] for one in (found, settings.more) if "spark.jars" in one]
    found.update(settings.more)
    return found | ({"spark.jars": ",".join(jars)} if jars else {})


def ship_code(session: SparkSession, folder: Path, job_modules: Mapping[str, Path]) -> None:
    """Make penstock and the job's modules importable in the workers, on any machine."""
    context = session.sparkContext
    # Workers that penstock's daemon forks use the installed penstock.
    has_penstock = context.getConf().get(_DAEMON) == _OWN_DAEMON
    if job_modules or not has_penstock:
        context.addPyFile(str(code_archive(folder, job_modules, has_penstock=not has_penstock)))
    # The archives of earlier starts. Executors that this context starts later fetch all that it was given.
    for archive in folder.glob(f"{_ARCHIVE}*.zip"):
        if archive.name not in (context._python_includes or ()):  # noqa: SLF001  # nothing public has it
            archive.unlink(missing_ok=True)


def code_archive(folder: Path, job_modules: Mapping[str, Path], *, has_penstock: bool) -> Path:
    """Write a zip of the job's modules, and return its path. The workers have the zip on the import path.

    The name of the zip is a hash of its content, since Spark refuses another content of the same name, and a zip has
    the times of its files.

    Args:
        folder: where to write the zip.
        job_modules: the file of each of the job's modules by its path in the zip.
        has_penstock: whether the zip has penstock too, and bytecode beside all sources. Without bytecode each worker
            process compiles them again, in half a second; with another Python it does so anyway.

    """
    package = Path(__file__).parents[1]
    own = package.rglob("*.py") if has_penstock else ()
    files = {f"penstock/{path.relative_to(package).as_posix()}": path for path in sorted(own)} | dict(
        job_modules
    )
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "penstock-code.new"
    with zipfile.ZipFile(new, "w") as target:
        for name, path in files.items():
            target.write(path, name)
            compiled = Path(importlib.util.cache_from_source(path))
            if has_penstock and path.suffix == ".py" and compiled.is_file():
                target.write(compiled, f"{name}c")
    digest = hashlib.sha256(new.read_bytes()).hexdigest()
    return new.rename(folder / f"{_ARCHIVE}{digest[:16]}.zip")
