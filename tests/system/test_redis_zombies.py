"""Writers of Redis that are killed, suspended and resumed: each key keeps the value of the newest micro-batch."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job_process import await_true
from redis_server import RedisServer
from reliability import Injected, noting
from store_writer import KEYS, LINEAGE, batch_of, expected_after, next_batch

WRITER = Path(__file__).parent / "store_writer.py"


class Writers:
    """A succession of writers; files in a folder record what they have committed."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self._server = server
        self._folder = folder

    @property
    def next_batch(self) -> int:
        return next_batch(self._folder)

    def begin(self) -> subprocess.Popen[bytes]:
        """Start a writer; return once it has committed some micro-batches."""
        before = self.next_batch
        command = [sys.executable, str(WRITER), self._server.uri("0/k:{key}"), str(self._folder)]
        with (self._folder / "errors").open("ab") as errors:
            writer = subprocess.Popen(command, stderr=errors)
        await_true(
            lambda: writer.poll() is not None or self.next_batch > before + 2,
            lambda: "the writer writes nothing",
        )
        assert writer.poll() is None, (self._folder / "errors").read_text()[-2000:]
        return writer

    def assert_values(self) -> None:
        """Check that values are those of the micro-batches so far; the next one may be written in part."""
        done = self.next_batch
        with self._server.client() as client:
            found = {key: int(client.hget(f"k:{key}", "number") or -1) for key in range(KEYS)}
        begun = {(row["key"], row["number"]) for row in batch_of(done)}
        wrong = {
            key: (found[key], number)
            for key, number in expected_after(done).items()
            if found[key] != number and (key, found[key]) not in begun
        }
        assert not wrong

    def end_zombie(self, zombie: subprocess.Popen[bytes]) -> None:
        """Resume a suspended writer, which must write nothing more and end."""
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(60) != 0
        assert "a later run of the job writes to the keys" in (self._folder / "errors").read_text()[-500:]


def strike(writers: Writers, server: RedisServer, rounds: int, injected: Injected | None) -> None:
    """Kill writers and the server, and suspend writers while later ones write."""

    def note(fault: str) -> None:
        if injected is not None:
            injected.add(fault)

    for number in range(rounds):
        writer = writers.begin()
        match number % 3:
            case 0:
                note("writer of Redis killed")
                writer.kill()
                writer.wait()
            case 1:
                note("writer of Redis stands still while a later one writes")
                writer.send_signal(signal.SIGSTOP)
                later = writers.begin()
                writers.end_zombie(writer)
                later.kill()
                later.wait()
            case _:
                note("Redis killed")
                server.kill()
                assert writer.wait(60) != 0
                server.start()
        writers.assert_values()


def test_writers_that_are_killed_or_stand_still(tmp_path: Path) -> None:
    """The fence of a lineage is one key."""
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as server:
        writers = Writers(tmp_path, server)
        strike(writers, server, 3, None)
        with server.client() as client:
            assert client.keys("penstock:*") == [f"penstock:fence:{LINEAGE}:latest"]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_kills_and_zombies_of_redis(tmp_path: Path) -> None:
    """Twenty-four faults, a third of each kind."""
    (tmp_path / "redis").mkdir()
    with (
        RedisServer(tmp_path / "redis") as server,
        noting("key-value sinks", "-k kills_and_zombies_of_redis") as injected,
    ):
        strike(Writers(tmp_path, server), server, 24, injected)
