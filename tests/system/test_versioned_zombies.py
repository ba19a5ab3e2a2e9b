"""Writers of Cassandra and OpenSearch that are killed, suspended and resumed: each key keeps its newest value."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cassandra_server import KEYSPACE, CassandraServer
from job_process import await_true
from opensearch_server import OpenSearchServer
from reliability import Injected, noting
from store_writer import batch_of, expected_after, next_batch

WRITER = Path(__file__).parent / "versioned_writer.py"
PATIENCE_S = 180.0


class Rows:
    """Values as rows of Cassandra."""

    name = "Cassandra"

    def __init__(self, folder: Path) -> None:
        self.server = CassandraServer(folder)

    def prepare(self) -> None:
        self.server.execute(f"CREATE TABLE {KEYSPACE}.k (key bigint PRIMARY KEY, number bigint)")

    def uri(self) -> str:
        return self.server.uri("k", "?retry_s=120")

    def values(self) -> dict[int, int]:
        return {row.key: row.number for row in self.server.execute(f"SELECT key, number FROM {KEYSPACE}.k")}


class Documents:
    """Values as documents of OpenSearch."""

    name = "OpenSearch"

    def __init__(self, folder: Path) -> None:
        self.server = OpenSearchServer(folder)

    def prepare(self) -> None:
        self.server.ask("PUT", "/k")

    def uri(self) -> str:
        return self.server.uri("k", "?id={key}&retry_s=120")

    def values(self) -> dict[int, int]:
        return {one["key"]: one["number"] for one in self.server.documents("k").values()}


class Writers:
    """A succession of writers; files in a folder record what they have committed."""

    def __init__(self, folder: Path, store: Any) -> None:
        self._folder = folder
        self._store = store

    def begin(self) -> subprocess.Popen[bytes]:
        """Start a writer; return once it has committed some micro-batches."""
        command = [sys.executable, str(WRITER), self._store.uri(), str(self._folder)]
        with (self._folder / "errors").open("ab") as errors:
            writer = subprocess.Popen(command, stderr=errors)
        self.await_progress(writer)
        return writer

    def await_progress(self, writer: subprocess.Popen[bytes]) -> None:
        """Wait until a writer has committed more."""
        before = next_batch(self._folder)
        await_true(
            lambda: writer.poll() is not None or next_batch(self._folder) > before + 2,
            lambda: "the writer writes nothing",
            PATIENCE_S,
        )
        assert writer.poll() is None, (self._folder / "errors").read_text()[-2000:]

    def assert_values(self) -> None:
        """Check that values are those of the micro-batches so far; the next one may be written in part."""
        done = next_batch(self._folder)
        found = self._store.values()
        begun = {(row["key"], row["number"]) for row in batch_of(done)}
        wrong = {
            key: (found.get(key), number)
            for key, number in expected_after(done).items()
            if found.get(key) != number and (key, found.get(key)) not in begun
        }
        assert not wrong

    def end_zombie(self, zombie: subprocess.Popen[bytes]) -> None:
        """Resume a suspended writer, which may still write, and finds that it has lost the checkpoint."""
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(PATIENCE_S) != 0
        assert "Another run has taken over the checkpoint" in (self._folder / "errors").read_text()[-1500:]


def strike(writers: Writers, store: Any, rounds: int, injected: Injected | None) -> None:
    """Kill writers and the server, and suspend writers while later ones write."""
    for number in range(rounds):
        faults = ("writer killed", "writer stands still while a later one writes", "server killed")
        if injected is not None:
            injected.add(f"{store.name}: {faults[number % 3]}")
        writer = writers.begin()
        match number % 3:
            case 0:
                writer.kill()
                writer.wait()
            case 1:
                writer.send_signal(signal.SIGSTOP)
                later = writers.begin()
                writers.end_zombie(writer)
                later.kill()
                later.wait()
            case _:
                store.server.kill()
                time.sleep(0.5)
                store.server.start()
                # It has waited.
                writers.await_progress(writer)
                writer.kill()
                writer.wait()
        writers.assert_values()


def run(folder: Path, kind: Any, rounds: int, injected: Injected | None) -> None:
    (folder / "server").mkdir()
    store = kind(folder / "server")
    with store.server:
        store.prepare()
        strike(Writers(folder, store), store, rounds, injected)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [Documents, Rows])
def test_kills_and_zombies_of_versioned_stores(tmp_path: Path, kind: Any) -> None:
    """Twenty-one faults, a third of each kind."""
    with noting("versioned sinks", "-k kills_and_zombies_of_versioned_stores") as injected:
        run(tmp_path, kind, 21, injected)
